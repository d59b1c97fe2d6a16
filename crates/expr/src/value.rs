use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr};

use crate::number::to_number;
use crate::variable::Variable;

/// Source of variables' values: a request on its way through the gateway.
pub trait Source {
    /// Current value of `variable`; `None` if it is not set.
    fn variable(&self, variable: &Variable) -> Option<Value<'_>>;
}

/// Value of a variable in the gateway's internal form; it is only printed when needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// Text as received; may be invalid UTF-8.
    Bytes(&'a [u8]),
    /// A count, a port or a status.
    Number(u64),
    /// An address without port.
    Ip(IpAddr),
    /// A time in milliseconds, printed in seconds with three decimals, as nginx prints times.
    Millis(u64),
    /// A boolean of a JSON body, or a query argument that came without `=`, which is `true`: in expressions equal to the
    /// boolean and to no text.
    Boolean(bool),
    /// A number, list, object or `null` of a JSON body, or several values: as JSON, which is what is printed. In
    /// expressions it equals no text, a number equals numbers, and a list `has` its elements.
    Json(&'a str),
}

impl Value<'_> {
    /// Appends the printed value. Allocates only if `out` has to grow.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.print(&mut Scratch::new()));
    }

    /// Value as a number by the rules of Lua's `tonumber`; a time is in seconds.
    pub fn as_number(&self) -> Option<f64> {
        match *self {
            Value::Bytes(bytes) => to_number(bytes),
            Value::Number(number) => Some(number as f64),
            Value::Millis(millis) => Some(millis as f64 / 1000.0),
            Value::Json(json) => to_number(json.as_bytes()),
            Value::Ip(_) | Value::Boolean(_) => None,
        }
    }

    /// Printed value: the bytes themselves, or the text written into `scratch`.
    pub(crate) fn print<'b>(&'b self, scratch: &'b mut Scratch) -> &'b [u8] {
        match *self {
            Value::Bytes(bytes) => return bytes,
            Value::Json(json) => return json.as_bytes(),
            Value::Boolean(true) => return b"true",
            Value::Boolean(false) => return b"false",
            Value::Number(number) => scratch.decimal(number),
            Value::Millis(millis) => scratch.seconds(millis),
            Value::Ip(IpAddr::V4(address)) => scratch.ipv4(address),
            Value::Ip(IpAddr::V6(address)) => {
                // Cannot fail: the scratch has room for the longest address (45 bytes).
                let _ = write!(scratch, "{address}");
            }
        }
        scratch.written()
    }
}

/// Stack buffer for one printed number or address.
pub(crate) struct Scratch {
    bytes: [u8; Scratch::SIZE],
    length: usize,
}

impl Scratch {
    const SIZE: usize = 48;

    pub(crate) fn new() -> Scratch {
        Scratch { bytes: [0; Scratch::SIZE], length: 0 }
    }

    fn written(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn append(&mut self, text: &[u8]) -> fmt::Result {
        let room = self.bytes.get_mut(self.length..self.length + text.len()).ok_or(fmt::Error)?;
        room.copy_from_slice(text);
        self.length += text.len();
        Ok(())
    }

    fn digit(&mut self, digit: u8) {
        let _ = self.append(&[b'0' + digit]);
    }

    fn decimal(&mut self, mut number: u64) {
        let mut digits = [0; 20];
        let mut first = digits.len();
        loop {
            first -= 1;
            digits[first] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                break;
            }
        }
        let _ = self.append(&digits[first..]);
    }

    fn seconds(&mut self, millis: u64) {
        self.decimal(millis / 1000);
        let _ = self.append(b".");
        for unit in [100, 10, 1] {
            self.digit((millis / unit % 10) as u8);
        }
    }

    /// Formatted without `Display`, which costs some 50 ns, because every access log line contains an address.
    fn ipv4(&mut self, address: Ipv4Addr) {
        for (place, octet) in address.octets().into_iter().enumerate() {
            if place > 0 {
                let _ = self.append(b".");
            }
            self.decimal(u64::from(octet));
        }
    }
}

impl fmt::Write for Scratch {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.append(text.as_bytes())
    }
}
