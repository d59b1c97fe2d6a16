//! Requests and answers of RocketMQ's protocol: a length, a head in JSON with its own length, and a body.

use std::collections::BTreeMap;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::json;
use weir_telemetry::reports::MessageTopic;

/// Codes of requests.
pub(super) const GET_ROUTE: i32 = 105;
pub(super) const SEND_MESSAGE: i32 = 310;
/// Codes of answers.
pub(super) const SUCCESS: i32 = 0;
pub(super) const NO_TOPIC: i32 = 17;
/// Codes of answers to messages that the broker has, while its disk or its copies are late.
const TAKEN: [i32; 4] = [SUCCESS, 10, 11, 12];
/// The topic by which brokers say that they make topics that do not exist yet.
pub(super) const FOR_NEW_TOPICS: &str = "TBW102";
/// Most queues of a topic that is made, as RocketMQ's own clients have it.
const NEW_QUEUES: u32 = 4;
/// The group that producers belong to, as APISIX has it.
const GROUP: &str = "apisixLogProducer";
/// The version of RocketMQ whose requests these are (4.9.4).
const VERSION: i32 = 403;
/// Permission to write to a queue.
const WRITABLE: u32 = 2;

/// Fields of a request, in the order in which they are signed.
pub(super) type Fields = BTreeMap<&'static str, String>;

/// A queue of a topic.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Queue {
    pub(super) host: String,
    pub(super) port: u16,
    number: u32,
    /// Queues of the topic, where it is to be made.
    makes: Option<u32>,
}

/// A request behind its lengths.
pub(super) fn framed(code: i32, number: i32, fields: &Fields, body: &[u8]) -> Vec<u8> {
    let head = json!({
        "code": code, "language": "OTHER", "version": VERSION, "opaque": number, "flag": 0, "remark": "", "extFields": fields,
    });
    let head = head.to_string();
    let mut whole = ((4 + head.len() + body.len()) as u32).to_be_bytes().to_vec();
    // The first byte says that the head is JSON.
    whole.extend_from_slice(&(head.len() as u32 & 0x00ff_ffff).to_be_bytes());
    whole.extend_from_slice(head.as_bytes());
    whole.extend_from_slice(body);
    whole
}

/// The question for the brokers of a topic.
pub(super) fn route(to: &MessageTopic, topic: &str) -> Fields {
    signed(to, Fields::from([("topic", topic.to_owned()), ("acceptStandardJsonOnly", "true".to_owned())]), b"")
}

/// A message for a queue, at milliseconds since 1970.
pub(super) fn message(to: &MessageTopic, queue: &Queue, body: &[u8], unix_ms: i64) -> Fields {
    let mut properties = String::new();
    for (name, value) in [("KEYS", to.key.as_deref()), ("TAGS", to.tag.as_deref()), ("WAIT", Some("true"))] {
        if let Some(value) = value {
            properties += &format!("{name}\u{1}{value}\u{2}");
        }
    }
    let text = str::to_owned;
    let fields = Fields::from([
        ("a", text(GROUP)),
        ("b", to.name.clone()),
        ("c", text(FOR_NEW_TOPICS)),
        ("d", queue.makes.unwrap_or(NEW_QUEUES).to_string()),
        ("e", queue.number.to_string()),
        ("f", text("0")),
        ("g", unix_ms.to_string()),
        ("h", text("0")),
        ("i", properties),
        ("j", text("0")),
        ("k", text("false")),
        ("m", text("false")),
    ]);
    signed(to, fields, body)
}

/// Fields with a signature, where there is an account: the values in the order of their names, then the body.
fn signed(to: &MessageTopic, mut fields: Fields, body: &[u8]) -> Fields {
    let Some((access, secret)) = &to.account else { return fields };
    fields.insert("AccessKey", access.clone());
    let mut text: Vec<u8> = fields.values().flat_map(|value| value.bytes()).collect();
    text.extend_from_slice(body);
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, secret.as_bytes());
    fields.insert("Signature", STANDARD.encode(hmac::sign(&key, &text)));
    fields
}

/// An answer.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) code: i32,
    number: i32,
    flag: i32,
    remark: String,
    body: Vec<u8>,
}

#[derive(Deserialize)]
struct Head {
    code: i32,
    opaque: i32,
    #[serde(default)]
    flag: i32,
    remark: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Route {
    broker_datas: Vec<BrokerData>,
    queue_datas: Vec<QueueData>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct BrokerData {
    broker_name: String,
    /// Addresses by numbers, of which 0 is the one that takes messages.
    broker_addrs: BTreeMap<String, String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct QueueData {
    broker_name: String,
    write_queue_nums: u32,
    perm: u32,
}

impl Reply {
    /// Reads an answer behind its length; `None` for what is none.
    pub(super) fn read(answer: &[u8]) -> Option<Self> {
        let (length, rest) = answer.split_first_chunk::<4>()?;
        let length = u32::from_be_bytes(*length);
        // The first byte tells the form of the head: 0 is JSON.
        let (head, body) = rest.split_at_checked(usize::try_from(length).ok().filter(|length| length >> 24 == 0)?)?;
        let Head { code, opaque, flag, remark } = serde_json::from_slice(&standard(head)).ok()?;
        Some(Self { code, number: opaque, flag, remark: remark.unwrap_or_default(), body: body.to_vec() })
    }

    pub(super) fn is_answer_to(&self, number: i32) -> bool {
        self.flag & 1 == 1 && self.number == number
    }

    /// This answer, if it is one of success.
    pub(super) fn checked(self) -> Result<Self, String> {
        match self.code {
            SUCCESS => Ok(self),
            code => Err(format!("code {code} of RocketMQ: {}", first_line(&self.remark))),
        }
    }

    /// Success, if the broker has the message.
    pub(super) fn taken(self) -> Result<(), String> {
        if TAKEN.contains(&self.code) { Ok(()) } else { self.checked().map(drop) }
    }

    /// A queue by chance among those that the brokers of an answer take messages for.
    pub(super) fn queue(&self, is_new: bool) -> Result<Queue, String> {
        let route: Route = serde_json::from_slice(&standard(&self.body))
            .map_err(|_| "a list of brokers that is none of RocketMQ's".to_owned())?;
        let mut queues = Vec::new();
        for queue in route.queue_datas.iter().filter(|queue| queue.perm & WRITABLE != 0) {
            let broker = route.broker_datas.iter().find(|broker| broker.broker_name == queue.broker_name);
            let address = broker.and_then(|broker| broker.broker_addrs.get("0")?.rsplit_once(':'));
            let address = address.and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
            let Some((host, port)) = address else { continue };
            let count = if is_new { queue.write_queue_nums.min(NEW_QUEUES) } else { queue.write_queue_nums };
            if count > 0 {
                let number = fastrand::u32(..count);
                queues.push(Queue { host: host.to_owned(), port, number, makes: is_new.then_some(count) });
            }
        }
        if queues.is_empty() {
            return Err("no broker takes messages for the topic".to_owned());
        }
        Ok(queues.swap_remove(fastrand::usize(..queues.len())))
    }
}

/// The first line of what a broker says: a trace of Java's calls follows at times.
fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}

/// JSON as others read it: RocketMQ writes numbers as keys without quotes.
fn standard(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() + 16);
    let (mut is_text, mut is_escaped, mut may_be_key) = (false, false, false);
    let mut rest = json;
    while let Some((byte, behind)) = rest.split_first() {
        let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        if may_be_key && digits > 0 && rest.get(digits) == Some(&b':') {
            let (key, behind) = rest.split_at(digits);
            out.push(b'"');
            out.extend_from_slice(key);
            out.push(b'"');
            rest = behind;
            may_be_key = false;
            continue;
        }
        may_be_key = !is_text && matches!(byte, b'{' | b',');
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_text,
            b'"' => is_text = !is_text,
            _ => {}
        }
        out.push(*byte);
        rest = behind;
    }
    out
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Queue, Reply, framed, message, route, standard};
    use weir_telemetry::reports::MessageTopic;

    fn topic(account: Option<(&str, &str)>) -> MessageTopic {
        MessageTopic {
            nameservers: Vec::new(),
            name: "t".into(),
            key: Some("k".into()),
            tag: None,
            account: account.map(|(access, secret)| (access.into(), secret.into())),
            tls: false,
            timeout: Duration::from_secs(1),
        }
    }

    fn reply(head: &str, body: &str) -> Option<Reply> {
        Reply::read(&[&(head.len() as u32).to_be_bytes()[..], head.as_bytes(), body.as_bytes()].concat())
    }

    #[test]
    fn requests_have_a_head_and_a_body() {
        let queue = Queue { host: "h".into(), port: 1, number: 3, makes: None };
        let fields = message(&topic(None), &queue, b"hello", 5);
        assert_eq!((fields["b"].as_str(), fields["e"].as_str(), fields["g"].as_str()), ("t", "3", "5"));
        assert_eq!(fields["i"], "KEYS\u{1}k\u{2}WAIT\u{1}true\u{2}");
        let whole = framed(310, 7, &fields, b"hello");
        let length = u32::from_be_bytes(whole[..4].try_into().unwrap()) as usize;
        assert_eq!(length, whole.len() - 4);
        let read = Reply::read(&whole[4..]).unwrap();
        assert_eq!((read.code, read.number, &*read.body), (310, 7, &b"hello"[..]));
        assert!(!read.is_answer_to(7), "a request is none");
    }

    #[test]
    fn signatures_are_those_of_the_specification() {
        // HMAC-SHA1 of "AKtruet" with "secret", by another program: values in the order of their names.
        let fields = route(&topic(Some(("AK", "secret"))), "t");
        assert_eq!(fields["AccessKey"], "AK");
        assert_eq!(fields["Signature"], "LWEDRbSVJ+1I80Q7NJ+YMNENBsU=");
    }

    #[test]
    fn numbers_as_keys_are_read() {
        for (written, read) in [
            (r#"{"a":{0:"x",12:"y"},"b":[1,2]}"#, r#"{"a":{"0":"x","12":"y"},"b":[1,2]}"#),
            (r#"{"a":",1:","b":"\",2:"}"#, r#"{"a":",1:","b":"\",2:"}"#),
            (r#"{"a":1,"b":{}}"#, r#"{"a":1,"b":{}}"#),
        ] {
            assert_eq!(String::from_utf8_lossy(&standard(written.as_bytes())), read);
        }
    }

    #[test]
    fn queues_are_found() {
        let head = r#"{"code":0,"flag":1,"opaque":1}"#;
        let route = r#"{"brokerDatas":[{"brokerName":"a","brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:1"}},
            {"brokerName":"b","brokerAddrs":{1:"10.0.0.3:1"}}],"queueDatas":[
            {"brokerName":"a","perm":6,"writeQueueNums":16,"readQueueNums":16},{"brokerName":"b","perm":6,"writeQueueNums":4}]}"#;
        let found = reply(head, route).unwrap().queue(false).unwrap();
        assert_eq!((found.host.as_str(), found.port, found.makes), ("10.0.0.1", 10911, None));
        assert!(found.number < 16);
        let found = reply(head, route).unwrap().queue(true).unwrap();
        assert!(found.number < 4 && found.makes == Some(4));
        for route in ["", "{}", &route.replace("\"perm\":6", "\"perm\":4"), &route.replace(":10911", "")] {
            assert!(reply(head, route).unwrap().queue(false).is_err(), "{route}");
        }
    }

    #[test]
    fn answers_are_read() {
        for (code, is_taken) in [(0, true), (10, true), (11, true), (12, true), (1, false), (13, false)] {
            let head = format!(r#"{{"code":{code},"flag":1,"opaque":2,"remark":"why\n at x","language":"JAVA"}}"#);
            let reply = reply(&head, "").unwrap();
            assert!(reply.is_answer_to(2) && !reply.is_answer_to(3));
            let taken = reply.taken();
            assert_eq!(taken.is_ok(), is_taken, "{code}");
            assert!(taken.is_ok() || taken == Err(format!("code {code} of RocketMQ: why")), "{taken:?}");
        }
        for broken in [&b""[..], b"\0\0\0", b"\0\0\0\x05{}", b"\x01\0\0\x02{}", b"\0\0\0\x02{}", b"\x7f\xff\xff\xff"] {
            assert!(Reply::read(broken).is_none(), "{broken:?}");
        }
    }
}
