//! Replies out of the bytes of a connection.

use std::io::{self, Read};

use redis::{Parser, Value};

/// Most bytes of one reply: the slots of a large cluster take some 100 KiB.
const MOST: usize = 256 << 10;

/// Reads replies as their bytes come.
#[derive(Default)]
pub(crate) struct Replies {
    parser: Parser,
    /// Bytes of the reply that is not whole.
    unfinished: usize,
}

impl Replies {
    /// The next reply out of what has come before and the front of `bytes`, which it takes; `None` when it is not
    /// whole. A reply may be within what was taken before, so that `bytes` that are empty do not mean that there is none.
    ///
    /// # Errors
    /// The bytes are no reply, or a longer one than anything here asks for.
    pub(crate) fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Value>, &'static str> {
        let mut arrived = Arrived { bytes, starved: false };
        let parsed = self.parser.parse_value(&mut arrived);
        let starved = arrived.starved;
        match parsed {
            Ok(value) => {
                self.unfinished = 0;
                Ok(Some(value))
            }
            Err(_) if starved && self.unfinished <= MOST => Ok(None),
            Err(_) if starved => Err("a reply is too long"),
            Err(_) => Err("what came is no reply"),
        }
    }

    /// Counts bytes that come.
    pub(crate) fn count(&mut self, bytes: usize) {
        self.unfinished += bytes;
    }
}

/// Bytes that have come, of which there may be more later.
struct Arrived<'a, 'b> {
    bytes: &'a mut &'b [u8],
    starved: bool,
}

impl Read for Arrived<'_, '_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.bytes.is_empty() {
            self.starved = true;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.bytes.read(room)
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::{MOST, Replies};

    fn read(replies: &mut Replies, mut bytes: &[u8]) -> Result<Vec<Value>, &'static str> {
        let mut found = Vec::new();
        replies.count(bytes.len());
        while let Some(value) = replies.next(&mut bytes)? {
            found.push(value);
        }
        Ok(found)
    }

    /// However the bytes are cut, the replies are the same.
    #[test]
    fn replies_come_in_pieces() {
        let text = b"*3\r\n:1\r\n$5\r\nab\r\nc\r\n*0\r\n+OK\r\n-MOVED 3999 127.0.0.1:6381\r\n$-1\r\n:-7\r\n";
        let whole = read(&mut Replies::default(), text).expect("replies");
        assert_eq!(whole.len(), 5);
        assert_eq!(
            whole[0],
            Value::Array(vec![Value::Int(1), Value::BulkString(b"ab\r\nc".to_vec()), Value::Array(Vec::new()),])
        );
        for cut in 1..text.len() {
            let mut replies = Replies::default();
            let mut found = read(&mut replies, &text[..cut]).expect("the beginning");
            found.extend(read(&mut replies, &text[cut..]).expect("the end"));
            assert_eq!(found, whole, "cut at {cut}");
        }
        let mut replies = Replies::default();
        let single: Vec<Value> = text.iter().flat_map(|byte| read(&mut replies, &[*byte]).expect("a byte")).collect();
        assert_eq!(single, whole);
    }

    #[test]
    fn what_is_no_reply_or_too_long_is_refused() {
        for text in [&b"HTTP/1.1 400 Bad Request\r\n"[..], b":x\r\n", b"*x\r\n", b"$3\r\nabcde\r\n"] {
            assert!(read(&mut Replies::default(), text).is_err(), "{text:?}");
        }
        // Neither an announced length nor a depth makes anything of it before the bytes come.
        for text in [&b"$536870912\r\n"[..], b"*2147483647\r\n", b"*9223372036854775807\r\n:1\r\n"] {
            assert_eq!(read(&mut Replies::default(), text), Ok(Vec::new()), "{text:?}");
        }
        assert!(read(&mut Replies::default(), &b"*1\r\n".repeat(5000)).is_err());
        let mut endless = Replies::default();
        let piece = [b'a'; 4096];
        assert_eq!(read(&mut endless, b"$536870912\r\n"), Ok(Vec::new()));
        let refused = (0..2 * MOST / piece.len()).find_map(|_| read(&mut endless, &piece).err());
        assert_eq!(refused, Some("a reply is too long"));
        let mut endless = Replies::default();
        let refused = (0..2 * MOST / piece.len()).find_map(|_| read(&mut endless, &piece).err());
        assert!(refused.is_some());
    }
}
