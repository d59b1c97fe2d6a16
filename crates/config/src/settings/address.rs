use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::DnsServer;

/// An address to listen on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ListenAddr {
    /// `127.0.0.1:9080`, `[::1]:9080`, `localhost:9080` for 127.0.0.1, or a port alone for all IPv4 addresses. Port 0
    /// takes a free one.
    Tcp(SocketAddr),
    /// `unix:/run/weir.sock`: the absolute path of a socket.
    Unix(PathBuf),
}

/// An address to listen on, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Endpoint {
    /// Nothing listens.
    Off,
    /// Listens here.
    On(SocketAddr),
}

/// An address to listen on, `off`, or `auto`, which is resolved at start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AutoEndpoint {
    /// Not set.
    #[default]
    Auto,
    /// Set explicitly.
    Given(Endpoint),
}

/// Prefix of the path of a Unix socket, as in nginx.
pub(crate) const UNIX: &str = "unix:";

/// Longest path of a Unix socket in bytes: `sun_path` of unix(7) without its last 0.
const UNIX_PATH: usize = 107;

pub(super) const LISTEN_EXPECTED: &str =
    "ADDRESS:PORT such as 127.0.0.1:9080, [::1]:9080 or localhost:9080, a port alone, or unix:/PATH";
const EXPECTED_OR_AUTO: &str =
    "ADDRESS:PORT such as 127.0.0.1:9180, [::1]:9180 or localhost:9180, a port alone, off, or auto";
const EXPECTED_OR_OFF: &str = "ADDRESS:PORT such as 127.0.0.1:9080, [::1]:9080 or localhost:9080, a port alone, or off";

fn parse(text: &str) -> Option<SocketAddr> {
    let on = |ip: Ipv4Addr, port: &str| Some(SocketAddr::new(IpAddr::V4(ip), port.parse().ok()?));
    match text.rsplit_once(':') {
        None => on(Ipv4Addr::UNSPECIFIED, text),
        Some(("", port)) => on(Ipv4Addr::UNSPECIFIED, port),
        // A name is not resolved: what it leads to may be another address tomorrow. This one is always the same.
        Some(("localhost", port)) => on(Ipv4Addr::LOCALHOST, port),
        Some(_) => text.parse().ok(),
    }
}

/// The path of a Unix socket, from what stands after `unix:`.
pub(crate) fn unix_path(path: &str) -> Result<&str, &'static str> {
    if !path.starts_with('/') {
        return Err("the path of a Unix socket must be absolute, such as unix:/run/app.sock");
    }
    if path.ends_with('/') || path.contains('\0') {
        return Err("a Unix socket is a file, such as unix:/run/app.sock");
    }
    match path.rsplit_once(':') {
        Some((_, port)) if port.bytes().all(|b| b.is_ascii_digit()) => {
            return Err("a Unix socket has no port, such as unix:/run/app.sock");
        }
        _ => {}
    }
    if path.len() > UNIX_PATH {
        return Err("the path of a Unix socket has at most 107 bytes");
    }
    Ok(path)
}

impl ListenAddr {
    /// The IP address and port; `None` for a Unix socket.
    pub fn tcp(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(addr) => Some(*addr),
            Self::Unix(_) => None,
        }
    }

    /// The path of a Unix socket.
    pub fn unix(&self) -> Option<&Path> {
        match self {
            Self::Tcp(_) => None,
            Self::Unix(path) => Some(path),
        }
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

impl AutoEndpoint {
    /// The endpoint that was set, or else `auto`.
    #[must_use]
    pub fn unless_given(self, auto: Endpoint) -> Endpoint {
        match self {
            Self::Auto => auto,
            Self::Given(endpoint) => endpoint,
        }
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(addr) => addr.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
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

impl fmt::Display for AutoEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Given(endpoint) => endpoint.fmt(f),
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

impl Serialize for AutoEndpoint {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

struct EndpointVisitor;

impl Visitor<'_> for EndpointVisitor {
    type Value = Endpoint;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED_OR_OFF)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Endpoint, E> {
        if text == "off" {
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
            false => Ok(Endpoint::Off),
            true => Err(E::invalid_type(Unexpected::Bool(value), &self)),
        }
    }
}

impl<'de> Deserialize<'de> for ListenAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ListenVisitor)
    }
}

pub(super) struct ListenVisitor;

impl Visitor<'_> for ListenVisitor {
    type Value = ListenAddr;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(LISTEN_EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<ListenAddr, E> {
        if let Some(path) = text.strip_prefix(UNIX) {
            return unix_path(path).map(|path| ListenAddr::Unix(path.into())).map_err(E::custom);
        }
        parse(text).map(ListenAddr::Tcp).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<ListenAddr, E> {
        match u16::try_from(number) {
            Ok(port) => Ok(ListenAddr::Tcp(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port))),
            Err(_) => Err(E::invalid_value(Unexpected::Signed(number), &self)),
        }
    }
}

impl<'de> Deserialize<'de> for Endpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(EndpointVisitor)
    }
}

struct AutoEndpointVisitor;

impl Visitor<'_> for AutoEndpointVisitor {
    type Value = AutoEndpoint;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(EXPECTED_OR_AUTO)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<AutoEndpoint, E> {
        match text {
            "auto" => Ok(AutoEndpoint::Auto),
            "off" => Ok(AutoEndpoint::Given(Endpoint::Off)),
            _ => parse(text)
                .map(|addr| AutoEndpoint::Given(Endpoint::On(addr)))
                .ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self)),
        }
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<AutoEndpoint, E> {
        EndpointVisitor.visit_i64(number).map(AutoEndpoint::Given)
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<AutoEndpoint, E> {
        EndpointVisitor.visit_bool(value).map(AutoEndpoint::Given)
    }
}

impl<'de> Deserialize<'de> for AutoEndpoint {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AutoEndpointVisitor)
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
        json_schema!({ "type": ["string", "integer"], "x-expected": LISTEN_EXPECTED })
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

impl JsonSchema for AutoEndpoint {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "AutoEndpoint".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "integer", "boolean"], "x-expected": EXPECTED_OR_AUTO })
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
