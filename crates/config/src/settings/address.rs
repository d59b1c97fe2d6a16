use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::DnsServer;

/// An address to listen on: `127.0.0.1:9080`, `[::1]:9080`, or a port alone for all IPv4 addresses. Port 0 takes a
/// free one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ListenAddr(pub SocketAddr);

/// An address to listen on, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// Nothing listens.
    Off,
    /// Listens here.
    On(SocketAddr),
}

const EXPECTED: &str = "ADDRESS:PORT such as 127.0.0.1:9080 or [::1]:9080, or a port alone";
const EXPECTED_OR_OFF: &str = "ADDRESS:PORT such as 127.0.0.1:9080 or [::1]:9080, a port alone, or off";

fn parse(text: &str) -> Option<SocketAddr> {
    let port = text.strip_prefix(':').unwrap_or(text);
    match port.parse::<u16>() {
        Ok(port) => Some(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port)),
        Err(_) => text.parse().ok(),
    }
}

impl Endpoint {
    /// The address, if something listens.
    pub fn addr(self) -> Option<SocketAddr> {
        match self {
            Self::Off => None,
            Self::On(addr) => Some(addr),
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::On(addr) => addr.fmt(f),
        }
    }
}

impl Serialize for ListenAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl Serialize for Endpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// An address, with its words for what is accepted.
struct AddrVisitor {
    off: bool,
}

impl Visitor<'_> for AddrVisitor {
    type Value = Endpoint;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.off { EXPECTED_OR_OFF } else { EXPECTED })
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Endpoint, E> {
        if self.off && text == "off" {
            return Ok(Endpoint::Off);
        }
        parse(text).map(Endpoint::On).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Endpoint, E> {
        match u16::try_from(number) {
            Ok(port) => Ok(Endpoint::On(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port))),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Endpoint, E> {
        match value {
            false if self.off => Ok(Endpoint::Off),
            _ => Err(E::invalid_type(Unexpected::Bool(value), &self)),
        }
    }
}

impl<'de> Deserialize<'de> for ListenAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match deserializer.deserialize_any(AddrVisitor { off: false })? {
            Endpoint::On(addr) => Ok(Self(addr)),
            Endpoint::Off => Err(D::Error::custom(EXPECTED)),
        }
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AddrVisitor { off: true })
    }
}

impl JsonSchema for ListenAddr {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "ListenAddr".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer"], "x-expected": EXPECTED })
    }
}

impl JsonSchema for Endpoint {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Endpoint".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer", "boolean"], "x-expected": EXPECTED_OR_OFF })
    }
}

const DNS_EXPECTED: &str =
    "the address of a name server, with or without a port: 10.0.0.2, 10.0.0.2:5353, [fd00::2]:53";

impl Serialize for DnsServer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for DnsServer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const DNS_PORT: u16 = 53;
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        match (text.parse::<SocketAddr>(), text.parse::<IpAddr>()) {
            (Ok(addr), _) => Ok(Self(addr)),
            (_, Ok(ip)) => Ok(Self(SocketAddr::new(ip, DNS_PORT))),
            _ => Err(D::Error::invalid_value(Unexpected::Str(&text), &DNS_EXPECTED)),
        }
    }
}

impl JsonSchema for DnsServer {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "DnsServer".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "x-expected": DNS_EXPECTED })
    }
}
