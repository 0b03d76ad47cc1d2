"""A listener with TLS, SASL and ACLs beside the plain one of a single node, to try what a secured cluster asks for."""

from __future__ import annotations

import json
import secrets
import subprocess
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ScramCredentialInfo, ScramMechanism, UserScramCredentialUpsertion

from txbridge.embedded.ports import HOST
from txbridge.errors import EnvironmentProblemError

#: The user who may do everything. Its settings are in a file.
SUPERUSER = "txbridge"
_MECHANISM = "SCRAM-SHA-512"
# Kafka's least number of rounds: there is nothing to protect.
_ROUNDS = 4096
# Keys are made in a second, and a user in milliseconds; a minute is for an overloaded machine.
_TIMEOUT_S = 60.0


class SecureListener:
    """SASL_SSL with SCRAM-SHA-512. A user has the rights that ACLs give; SUPERUSER and the plain port have all.

    Keys and password are made once for a data folder.
    """

    def __init__(self, folder: Path, port: int, plain: str) -> None:
        self.port = port
        self._plain = plain
        self._store, self._certificate = folder / "broker.p12", folder / "ca.pem"
        self._secret = folder / "password"
        #: A TOML file with the settings of SUPERUSER, for `--config`; a client takes its table `kafka`.
        self.settings_file = folder / "client.toml"

    @property
    def bootstrap_servers(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def settings(self) -> dict[str, str]:
        """The settings of SUPERUSER, for librdkafka."""
        return self._settings_of(SUPERUSER, self._secret.read_text())

    def make_keys(self, keytool: Path) -> None:
        """Make the folder, its password, the broker's key and the certificate, unless they are there.

        The certificate is self-signed for the loopback address, so it is also what clients trust. Raises
        EnvironmentProblemError.
        """
        if self._certificate.exists():
            return
        self._store.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._store.unlink(missing_ok=True)
        self._secret.write_text(secrets.token_urlsafe(24))
        common: list[str | Path] = ["-keystore", self._store, "-storepass:file", self._secret, "-alias", "broker"]
        key = ["-genkeypair", "-keyalg", "EC", "-storetype", "PKCS12", "-dname", "CN=txbridge", "-validity", "3650"]
        _run([keytool, *key, "-ext", f"SAN=IP:{HOST}", *common])
        # Written last: it says that all are there.
        self._certificate.write_bytes(_run([keytool, "-exportcert", "-rfc", *common]))

    def properties(self, plain_port: int, controller_port: int) -> dict[str, str]:
        """The broker's settings for both listeners."""
        plain, secure = f"PLAINTEXT://{HOST}:{plain_port}", f"SECURE://{self.bootstrap_servers}"
        return {
            "listeners": f"{plain},{secure},CONTROLLER://{HOST}:{controller_port}",
            "advertised.listeners": f"{plain},{secure}",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL",
            "listener.name.secure.sasl.enabled.mechanisms": _MECHANISM,
            f"listener.name.secure.{_MECHANISM.lower()}.sasl.jaas.config": (
                "org.apache.kafka.common.security.scram.ScramLoginModule required;"
            ),
            "listener.name.secure.ssl.keystore.type": "PKCS12",
            "listener.name.secure.ssl.keystore.location": str(self._store),
            "listener.name.secure.ssl.keystore.password": self._secret.read_text(),
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            # On the plain port nobody has a name: the broker itself, its controller, administrators.
            "super.users": f"User:ANONYMOUS;User:{SUPERUSER}",
        }

    def make_superuser(self) -> None:
        """Make SUPERUSER on the running broker, and write its settings. Raises EnvironmentProblemError."""
        settings = self.add_user(SUPERUSER, self._secret.read_text())
        lines = (f"{json.dumps(name)} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items())
        self.settings_file.write_text(f"[kafka]\n{''.join(lines)}", encoding="utf-8")

    def add_user(self, name: str, password: str = "") -> dict[str, str]:
        """Make a user without any right, or change a password; by default it is a random one.

        Returns librdkafka's settings of the user. Raises EnvironmentProblemError.
        """
        chosen = password or secrets.token_urlsafe(24)
        credential = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, _ROUNDS)
        change = UserScramCredentialUpsertion(name, credential, chosen.encode())
        # It must live until the answer is there.
        admin = AdminClient({"bootstrap.servers": self._plain})
        try:
            admin.alter_user_scram_credentials([change])[name].result(_TIMEOUT_S)
        except (KafkaException, TimeoutError) as error:
            raise EnvironmentProblemError(f"the embedded Kafka did not make the user {name}: {error}") from error
        return self._settings_of(name, chosen)

    def _settings_of(self, name: str, password: str) -> dict[str, str]:
        return {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": "sasl_ssl",
            "ssl.ca.location": str(self._certificate),
            "sasl.mechanism": _MECHANISM,
            "sasl.username": name,
            "sasl.password": password,
        }


def _run(command: list[str | Path]) -> bytes:
    try:
        return subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S).stdout
    except FileNotFoundError:
        raise EnvironmentProblemError(
            f"there is no {command[0]}, which makes the keys of a secured Kafka: install a complete Java 17 or later "
            "(for example `apt-get install openjdk-17-jre-headless`), or point JAVA_HOME to one"
        ) from None
    except subprocess.SubprocessError as error:
        said = getattr(error, "stdout", None) or b""
        raise EnvironmentProblemError(f"{error}: {said.decode(errors='replace').strip()}") from None
