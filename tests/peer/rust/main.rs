//! RocketMQ's official Rust client at the end of a pipe, as GrpcClient.java is that of Java: one command a line in, one
//! answer a line out. Fields are separated by tabs. An answer begins with "done" or "error". It ends with its input.
//!
//! Arguments: the addresses of the doors, the topics that the producer names at its start, an AccessKey with its
//! secret, and whether it speaks TLS.

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use rocketmq::conf::{ClientOption, ProducerOption};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::Producer;

/// For a machine that is loaded; the client's default is 3 s.
const TIMEOUT: Duration = Duration::from_secs(20);

#[derive(Default)]
struct Known {
    answers: HashMap<String, Vec<String>>,
    asked: HashMap<String, usize>,
    checks: Vec<String>,
}

static KNOWN: LazyLock<Mutex<Known>> = LazyLock::new(Default::default);

fn check(message: &MessageView) -> TransactionResolution {
    let empty = String::new();
    let text = message.properties()["text"].clone();
    let mut keys = message.keys().to_vec();
    keys.sort();
    let length = message.body().len().to_string();
    let host = message.born_host().rsplit_once(':').map_or("", |one| one.0);
    // It does not say whether the message is corrupted.
    let row = [
        &text,
        message.message_id(),
        message.topic(),
        message.tag().unwrap_or(""),
        &keys.join(" "),
        message.properties().get("p").unwrap_or(&empty),
        &length,
        "False",
        host,
    ]
    .join("|");
    let mut known = KNOWN.lock().unwrap();
    known.checks.push(row);
    let number = known.asked.entry(text.clone()).or_default();
    *number += 1;
    let number = *number - 1;
    let answers = known.answers.get(&text);
    match answers.map(|all| all[number.min(all.len() - 1)].as_str()) {
        Some("commit") => TransactionResolution::COMMIT,
        Some("rollback") => TransactionResolution::ROLLBACK,
        _ => TransactionResolution::UNKNOWN,
    }
}

fn message(made: MessageBuilder, text: &str, tag: &str, keys: &str, property: &str) -> MessageBuilder {
    let mut properties = HashMap::from([("text", text)]);
    if !property.is_empty() {
        properties.insert("p", property);
    }
    let mut made = made.set_properties(properties);
    if !tag.is_empty() {
        made = made.set_tag(tag);
    }
    if !keys.is_empty() {
        made = made.set_keys(keys.split(' ').collect());
    }
    made
}

async fn obey(producer: &Producer, command: &[&str]) -> Result<String, Box<dyn std::error::Error>> {
    match command {
        ["plain", topic, text] => {
            let made = MessageBuilder::builder().set_topic(*topic).set_body(text.as_bytes().to_vec());
            let receipt = producer.send(message(made, text, "", "", "").build()?).await?;
            Ok(receipt.message_id().to_string())
        }
        ["transaction", topic, text, answer, checks, tag, keys, property] => {
            let checks = checks.split(',').map(str::to_string).collect();
            KNOWN.lock().unwrap().answers.insert(text.to_string(), checks);
            let made = MessageBuilder::transaction_message_builder(*topic, text.as_bytes().to_vec());
            let made = message(made, text, tag, keys, property).build()?;
            let begun = producer.send_transaction_message(made).await?;
            let id = begun.message_id().to_string();
            match *answer {
                "commit" => begun.commit().await?,
                "rollback" => begun.rollback().await?,
                _ => (),
            }
            Ok(id)
        }
        ["checks"] => Ok(KNOWN.lock().unwrap().checks.join(";")),
        _ => Err(format!("no such command: {command:?}").into()),
    }
}

#[tokio::main]
async fn main() {
    let given: Vec<String> = std::env::args().collect();
    let mut option = ProducerOption::default();
    option.set_topics(given[2].split(',').filter(|one| !one.is_empty()).collect::<Vec<_>>());
    let mut client = ClientOption::default();
    client.set_access_url(&given[1]);
    client.set_timeout(TIMEOUT);
    client.set_enable_tls(given[5] == "true");
    if !given[3].is_empty() {
        client.set_access_key(&given[3]);
        client.set_secret_key(&given[4]);
    }
    let checker = Box::new(|_, message| check(&message));
    let mut producer = Producer::new_transaction_producer(option, client, checker).unwrap();
    producer.start().await.unwrap();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let command: Vec<&str> = line.split('\t').collect();
        let answer = match obey(&producer, &command).await {
            Ok(done) => format!("done\t{done}"),
            Err(error) => format!("error\t{error}"),
        };
        println!("{}", answer.replace('\n', " "));
    }
    producer.shutdown().await.unwrap();
}
