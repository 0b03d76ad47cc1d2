"""Settings of a shop with one view; the environment gives all that differs between machines."""

import os

SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "only for this example")
ALLOWED_HOSTS = ["127.0.0.1", "testserver"]
ROOT_URLCONF = "shop.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["txbridge_django", "shop"]
MIDDLEWARE = ["txbridge_django.middleware.AnnouncementErrors"]

if os.environ.get("SHOP_POSTGRES_HOST"):
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "HOST": os.environ["SHOP_POSTGRES_HOST"],
            "USER": os.environ.get("SHOP_POSTGRES_USER", "postgres"),
            "NAME": os.environ.get("SHOP_POSTGRES_NAME", "postgres"),
            "CONN_MAX_AGE": 60,
        }
    }
else:
    DATABASES = {
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": os.environ.get("SHOP_SQLITE", "shop.sqlite"),
            "OPTIONS": {"timeout": float(os.environ.get("SHOP_SQLITE_TIMEOUT", "20"))},
            # Tests, too, use a file: threads that share one connection cannot show the effects of two transactions.
            "TEST": {"NAME": os.environ.get("SHOP_SQLITE", "shop.sqlite") + ".test"},
        }
    }

TOPIC = os.environ.get("SHOP_TOPIC", "orders.placed")
TXBRIDGE = {
    "GROUP": "shop",
    "KAFKA": {"bootstrap.servers": os.environ.get("SHOP_BOOTSTRAP_SERVERS", "127.0.0.1:9092")},
    "NAMESPACE": os.environ.get("SHOP_NAMESPACE", ""),
    # Longer than a request may wait for a connection or a lock.
    "PATIENCE": float(os.environ.get("SHOP_PATIENCE", "60")),
}
