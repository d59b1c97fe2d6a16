//! The first packet of an MQTT connection, CONNECT: who it is, in the versions 3.1, 3.1.1 and 5.

/// First fields of a CONNECT packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connect<'a> {
    /// Name of the protocol: `MQTT`, or `MQIsdp` in version 3.1.
    pub protocol: &'a [u8],
    /// Level of the protocol: 4 is version 3.1.1, 5 is version 5.
    pub level: u8,
    /// Id of the client; empty where the server is to give it one.
    pub client_id: &'a [u8],
}

/// Error for bytes that are no CONNECT, with a short reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0)
    }
}

/// Type and flags of a CONNECT packet (MQTT 5.0 section 3.1.1).
const CONNECT: u8 = 0x10;
/// The first level with properties.
const WITH_PROPERTIES: u8 = 5;
/// Longest name of a protocol that there is.
const LONGEST_NAME: usize = 6;

/// Parses a CONNECT packet up to the id of the client; `None` if more bytes are needed.
///
/// # Errors
/// The bytes are no CONNECT.
pub fn parse(bytes: &[u8]) -> Result<Option<Connect<'_>>, Malformed> {
    let mut head = Reader { bytes, is_all: false };
    match head.connect() {
        Ok(connect) => Ok(Some(connect)),
        Err(Stop::More) => Ok(None),
        Err(Stop::Malformed(reason)) => Err(Malformed(reason)),
    }
}

enum Stop {
    More,
    Malformed(&'static str),
}

struct Reader<'a> {
    bytes: &'a [u8],
    /// True if nothing of the packet is missing behind the bytes.
    is_all: bool,
}

impl<'a> Reader<'a> {
    fn connect(&mut self) -> Result<Connect<'a>, Stop> {
        if self.byte()? != CONNECT {
            return Err(Stop::Malformed("the first packet is no CONNECT"));
        }
        let length = self.varint()?;
        if let Some(packet) = self.bytes.get(..length) {
            (self.bytes, self.is_all) = (packet, true);
        }
        let name_length = self.length()?;
        if name_length > LONGEST_NAME {
            return Err(Stop::Malformed("the name of the protocol is too long"));
        }
        let protocol = self.take(name_length)?;
        if !matches!(protocol, b"MQTT" | b"MQIsdp") {
            return Err(Stop::Malformed("the name of the protocol is not that of MQTT"));
        }
        let level = self.byte()?;
        // Flags and keep-alive.
        self.take(3)?;
        if level >= WITH_PROPERTIES {
            let properties = self.varint()?;
            self.take(properties)?;
        }
        let id_length = self.length()?;
        let client_id = self.take(id_length)?;
        Ok(Connect { protocol, level, client_id })
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8], Stop> {
        match self.bytes.split_at_checked(count) {
            Some((taken, rest)) => {
                self.bytes = rest;
                Ok(taken)
            }
            None if self.is_all => Err(Stop::Malformed("the packet is shorter than what is in it")),
            None => Err(Stop::More),
        }
    }

    fn byte(&mut self) -> Result<u8, Stop> {
        Ok(self.take(1)?.first().copied().unwrap_or_default())
    }

    fn length(&mut self) -> Result<usize, Stop> {
        let high = usize::from(self.byte()?);
        Ok(high << 8 | usize::from(self.byte()?))
    }

    /// A variable byte integer (MQTT 5.0 section 1.5.5).
    fn varint(&mut self) -> Result<usize, Stop> {
        let mut value = 0;
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            value |= usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        Err(Stop::Malformed("a length has more than four bytes"))
    }
}

#[cfg(test)]
mod tests {
    use super::{Connect, Malformed, parse};

    fn packet(body: &[&[u8]]) -> Vec<u8> {
        let body = body.concat();
        [&[0x10, body.len() as u8][..], &body].concat()
    }

    #[test]
    fn connects_are_read_byte_by_byte() {
        let cases: [(Vec<u8>, &[u8], _, &[u8]); 4] = [
            (packet(&[b"\0\x04MQTT\x04\x02\0\x3c", b"\0\x03abc"]), b"MQTT", 4, b"abc"),
            (packet(&[b"\0\x04MQTT\x04\x02\0\x3c", b"\0\0"]), b"MQTT", 4, b""),
            (packet(&[b"\0\x06MQIsdp\x03\x02\0\x3c", b"\0\x01a", b"\0\x04will"]), b"MQIsdp", 3, b"a"),
            (packet(&[b"\0\x04MQTT\x05\x02\0\x3c", b"\x05\x11\0\0\0\x0a", b"\0\x02id"]), b"MQTT", 5, b"id"),
        ];
        for (bytes, protocol, level, client_id) in cases {
            let found = parse(&bytes);
            assert_eq!(found, Ok(Some(Connect { protocol, level, client_id })));
            let end = (0..bytes.len()).find(|end| parse(&bytes[..*end]) != Ok(None)).unwrap_or(bytes.len());
            assert_eq!(parse(&bytes[..end]), found, "only what stands behind the id may be missing");
            assert_eq!(parse(&[&bytes, &b"more"[..]].concat()), found, "what follows changes nothing");
        }
    }

    #[test]
    fn what_is_no_connect_is_refused() {
        let cases: [&[u8]; 8] = [
            b"GET / HTTP/1.1\r\n",
            b"\x16\x03\x01",
            b"\x11\x0c",
            b"\x10\xff\xff\xff\xff\x01",
            b"\x10\x0c\0\x07MQTTxxx",
            b"\x10\x0c\0\x04HTTP\x04\x02\0\0",
            b"\x10\x02\0\x04",
            b"\x10\x0c\0\x04MQTT\x04\x02\0\0\0\x09",
        ];
        for bytes in cases {
            assert!(matches!(parse(bytes), Err(Malformed(_))), "{bytes:?}");
        }
    }
}
