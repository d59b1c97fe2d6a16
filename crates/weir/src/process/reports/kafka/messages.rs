//! Requests and answers of Kafka's protocol, and record batches of its version 2.

use crc::{CRC_32_ISCSI, CRC_32_ISO_HDLC, Crc};
use weir_telemetry::reports::{Broker, Topic};

use super::Failure;

/// Number and version of an API.
pub(super) const PRODUCE: (i16, i16) = (0, 3);
pub(super) const METADATA: (i16, i16) = (3, 4);
pub(super) const SASL_HANDSHAKE: (i16, i16) = (17, 1);
pub(super) const SASL_AUTHENTICATE: (i16, i16) = (36, 0);

/// Codes of topics that are being made, and of brokers that do not lead a partition: unknown topic or partition, leader not
/// available, not the leader.
const NO_LEADER: [i16; 3] = [3, 5, 6];
/// Most entries of a list in an answer.
const MOST_ENTRIES: usize = 100_000;

static CRC32C: Crc<u32> = Crc::<u32>::new(&CRC_32_ISCSI);
static CRC32: Crc<u32> = Crc::<u32>::new(&CRC_32_ISO_HDLC);

/// A number below `count` by chance; nothing secret.
pub(super) fn chance(count: usize) -> usize {
    let mut bytes = [0; 4];
    // Without random bytes it is the first one.
    let _ = aws_lc_rs::rand::fill(&mut bytes);
    u32::from_be_bytes(bytes) as usize % count.max(1)
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// A number of few bytes where it is small, in zigzag order.
fn put_varint(out: &mut Vec<u8>, number: i64) {
    let mut rest = (number << 1 ^ number >> 63).cast_unsigned();
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

/// A request behind its length and its header.
pub(super) fn framed((api, version): (i16, i16), number: i32, request: &[u8]) -> Vec<u8> {
    let mut whole = vec![0; 4];
    whole.extend_from_slice(&api.to_be_bytes());
    whole.extend_from_slice(&version.to_be_bytes());
    whole.extend_from_slice(&number.to_be_bytes());
    put_text(&mut whole, "weir");
    whole.extend_from_slice(request);
    let length = (whole.len() - 4) as u32;
    whole.splice(..4, length.to_be_bytes());
    whole
}

/// Asks for a topic, which the brokers may make.
pub(super) fn metadata(topic: &str) -> Vec<u8> {
    let mut request = 1u32.to_be_bytes().to_vec();
    put_text(&mut request, topic);
    request.push(1);
    request
}

pub(super) fn handshake(mechanism: &str) -> Vec<u8> {
    let mut request = Vec::new();
    put_text(&mut request, mechanism);
    request
}

pub(super) fn authenticate(bytes: &[u8]) -> Vec<u8> {
    let mut request = Vec::new();
    put_bytes(&mut request, bytes);
    request
}

/// A message for a partition, at milliseconds since 1970.
pub(super) fn produce(to: &Topic, partition: i32, message: &[u8], unix_ms: i64) -> Vec<u8> {
    let acks: i16 = if to.all_replicas { -1 } else { 1 };
    let mut request = Vec::with_capacity(message.len() + 256);
    // No transaction.
    request.extend_from_slice(&(-1i16).to_be_bytes());
    request.extend_from_slice(&acks.to_be_bytes());
    request.extend_from_slice(&u32::try_from(to.timeout.as_millis()).unwrap_or(u32::MAX >> 1).to_be_bytes());
    request.extend_from_slice(&1u32.to_be_bytes());
    put_text(&mut request, &to.name);
    request.extend_from_slice(&1u32.to_be_bytes());
    request.extend_from_slice(&partition.to_be_bytes());
    put_bytes(&mut request, &record_batch(to.key.as_deref(), message, unix_ms));
    request
}

/// A batch of one record.
fn record_batch(key: Option<&str>, message: &[u8], unix_ms: i64) -> Vec<u8> {
    // Attributes, and the distances to time and offset of the batch.
    let mut record = vec![0, 0, 0];
    match key {
        Some(key) => {
            put_varint(&mut record, key.len() as i64);
            record.extend_from_slice(key.as_bytes());
        }
        None => put_varint(&mut record, -1),
    }
    put_varint(&mut record, message.len() as i64);
    record.extend_from_slice(message);
    // No header.
    record.push(0);
    // Of the part that the checksum is of: attributes, last offset, first and last time, producer, epoch, sequence, count.
    let mut checked = Vec::with_capacity(record.len() + 64);
    checked.extend_from_slice(&[0; 6]);
    checked.extend_from_slice(&unix_ms.to_be_bytes());
    checked.extend_from_slice(&unix_ms.to_be_bytes());
    checked.extend_from_slice(&[0xff; 14]);
    checked.extend_from_slice(&1u32.to_be_bytes());
    put_varint(&mut checked, record.len() as i64);
    checked.extend_from_slice(&record);
    // First offset, length from here on, epoch of the leader, version, checksum.
    let mut batch = vec![0; 8];
    batch.extend_from_slice(&((checked.len() + 9) as u32).to_be_bytes());
    batch.extend_from_slice(&[0xff; 4]);
    batch.push(2);
    batch.extend_from_slice(&CRC32C.checksum(&checked).to_be_bytes());
    batch.extend_from_slice(&checked);
    batch
}

/// Reads the answer to a message.
pub(super) fn produced(answer: &mut Reader<'_>) -> Result<(), Failure> {
    let (topics, _, partitions, _) = (answer.count()?, answer.text()?, answer.count()?, answer.i32()?);
    if (topics, partitions) != (1, 1) {
        return Err(broken());
    }
    outcome(answer.i16()?)
}

fn outcome(code: i16) -> Result<(), Failure> {
    match code {
        0 => Ok(()),
        code if NO_LEADER.contains(&code) => Err(Failure::NoLeader(code)),
        10 => Err(Failure::Other(
            "the batch is larger than the broker takes (message.max.bytes): lower batch_max_size".into(),
        )),
        29 => Err(Failure::Other("the user may not write to the topic".to_owned())),
        code => Err(Failure::Other(format!("error {code} of Kafka"))),
    }
}

fn broken() -> Failure {
    Failure::Other("an answer that is none of Kafka's".to_owned())
}

/// Reads an answer from front to back.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(answer: &'a [u8]) -> Self {
        Self(answer)
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Failure> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(broken)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        self.take(N)?.try_into().map_err(|_| broken())
    }

    pub(super) fn i16(&mut self) -> Result<i16, Failure> {
        self.array().map(i16::from_be_bytes)
    }

    fn i32(&mut self) -> Result<i32, Failure> {
        self.array().map(i32::from_be_bytes)
    }

    /// Number of entries of a list; a list that is absent has none.
    fn count(&mut self) -> Result<usize, Failure> {
        match self.i32()? {
            -1 => Ok(0),
            count => usize::try_from(count).ok().filter(|count| *count <= MOST_ENTRIES).ok_or_else(broken),
        }
    }

    pub(super) fn text(&mut self) -> Result<Option<String>, Failure> {
        match self.i16()? {
            -1 => Ok(None),
            length => {
                let text = self.take(usize::try_from(length).map_err(|_| broken())?)?;
                Ok(Some(String::from_utf8_lossy(text).into_owned()))
            }
        }
    }

    pub(super) fn bytes(&mut self) -> Result<&'a [u8], Failure> {
        match self.i32()? {
            -1 => Ok(&[]),
            length => self.take(usize::try_from(length).map_err(|_| broken())?),
        }
    }
}

/// The partitions of a topic, and the brokers.
#[derive(Debug)]
pub(super) struct Metadata {
    brokers: Vec<(i32, Broker)>,
    error: i16,
    /// Numbers of partitions, with their errors and leaders.
    partitions: Vec<(i32, i16, i32)>,
}

impl Metadata {
    pub(super) fn read(answer: &mut Reader<'_>) -> Result<Self, Failure> {
        answer.i32()?;
        let mut brokers = Vec::new();
        for _ in 0..answer.count()? {
            let (number, host, port) = (answer.i32()?, answer.text()?.ok_or_else(broken)?, answer.i32()?);
            answer.text()?;
            let port = u16::try_from(port).map_err(|_| broken())?;
            brokers.push((number, Broker { host, port, login: None }));
        }
        answer.text()?;
        answer.i32()?;
        if answer.count()? != 1 {
            return Err(broken());
        }
        let error = answer.i16()?;
        answer.text()?;
        answer.array::<1>()?;
        let mut partitions = Vec::new();
        for _ in 0..answer.count()? {
            let (error, number, leader) = (answer.i16()?, answer.i32()?, answer.i32()?);
            for _ in 0..2 {
                for _ in 0..answer.count()? {
                    answer.i32()?;
                }
            }
            partitions.push((number, error, leader));
        }
        partitions.sort_unstable();
        Ok(Self { brokers, error, partitions })
    }

    /// The leader of the partition for the topic's key, or of one by chance among those that have a leader.
    pub(super) fn leader(&self, to: &Topic) -> Result<(Broker, i32), Failure> {
        outcome(self.error)?;
        let led = |(number, _, leader): &(i32, i16, i32)| {
            let broker = self.brokers.iter().find(|(known, _)| known == leader)?;
            Some((broker.1.clone(), *number))
        };
        let found = match &to.key {
            Some(key) => {
                let at = CRC32.checksum(key.as_bytes()) as usize % self.partitions.len().max(1);
                self.partitions.get(at).and_then(led)
            }
            None => {
                let mut led: Vec<_> = self.partitions.iter().filter_map(led).collect();
                (!led.is_empty()).then(|| led.swap_remove(chance(led.len())))
            }
        };
        found.ok_or(Failure::NoLeader(5))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Failure, Metadata, Reader, framed, produced, put_varint, record_batch};
    use weir_telemetry::reports::Topic;

    fn topic(key: Option<&str>) -> Topic {
        let key = key.map(str::to_owned);
        Topic {
            brokers: Vec::new(),
            name: "t".into(),
            key,
            all_replicas: false,
            tls: None,
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn numbers_take_few_bytes() {
        for (number, bytes) in [
            (0, &[0][..]),
            (-1, &[1]),
            (1, &[2]),
            (63, &[126]),
            (64, &[0x80, 1]),
            (300, &[0xd8, 4]),
            (-300, &[0xd7, 4]),
        ] {
            let mut out = Vec::new();
            put_varint(&mut out, number);
            assert_eq!(out, bytes, "{number}");
        }
    }

    #[test]
    fn a_request_has_a_length_and_a_header() {
        assert_eq!(framed((3, 4), 7, b"x"), b"\x00\x00\x00\x0f\x00\x03\x00\x04\x00\x00\x00\x07\x00\x04weirx");
    }

    #[test]
    fn a_batch_has_one_record() {
        let batch = record_batch(Some("k"), b"hello", 1);
        let record = b"\x18\x00\x00\x00\x02k\x0ahello\x00";
        assert!(batch.ends_with(record), "{batch:x?}");
        assert_eq!(batch.len(), 61 + record.len());
        assert_eq!(batch[8..12], ((batch.len() - 12) as u32).to_be_bytes());
        assert!(record_batch(None, b"", 1).ends_with(b"\x0c\x00\x00\x00\x01\x00\x00"));
    }

    #[test]
    fn answers_to_messages_are_read() {
        let of = |code: i16| [&b"\0\0\0\x01\0\x01t\0\0\0\x01\0\0\0\0"[..], &code.to_be_bytes(), &[0; 20]].concat();
        let read = |answer: &[u8]| produced(&mut Reader::new(answer));
        assert_eq!(read(&of(0)), Ok(()));
        assert_eq!(read(&of(6)), Err(Failure::NoLeader(6)));
        for (code, says) in [(10, "message.max.bytes"), (29, "may not write"), (87, "error 87")] {
            let Err(Failure::Other(reason)) = read(&of(code)) else { panic!("{code}") };
            assert!(reason.contains(says), "{reason}");
        }
        for broken in [&b""[..], b"\0\0\0\x02", &of(0)[..16], b"\x7f\xff\xff\xff"] {
            assert!(matches!(read(broken), Err(Failure::Other(_))), "{broken:x?}");
        }
    }

    #[test]
    fn leaders_are_found() {
        let mut answer = b"\0\0\0\0\0\0\0\x02\0\0\0\x01\0\x01a\0\0\x23\x84\xff\xff\0\0\0\x02\0\x01b\0\0\x23\x85\xff\xff\xff\xff\0\0\0\x01\
            \0\0\0\x01\0\0\0\x01t\0\0\0\0\x02"
            .to_vec();
        answer.extend_from_slice(b"\0\0\0\0\0\x01\0\0\0\x02\0\0\0\x01\0\0\0\x02\0\0\0\0");
        answer.extend_from_slice(b"\0\x05\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0");
        let metadata = Metadata::read(&mut Reader::new(&answer)).unwrap();
        // The other one has no leader just now.
        let (broker, partition) = metadata.leader(&topic(None)).unwrap();
        assert_eq!((broker.host.as_str(), broker.port, partition), ("b", 9093, 1));
        // The CRC-32 of a key says which partition it is.
        let found = ["a", "d"].map(|key| metadata.leader(&topic(Some(key))).map(|(_, partition)| partition));
        assert_eq!(found, [Ok(1), Err(Failure::NoLeader(5))]);
        for end in 0..answer.len() {
            assert!(Metadata::read(&mut Reader::new(&answer[..end])).is_err(), "{end}");
        }
    }
}
