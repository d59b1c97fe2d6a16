use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, SeqAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use weir_expr::Expr;

use crate::code::Code;
use crate::node::{coded, quoted};
use crate::settings::UNIX;

/// A path to match, as it was written: 1 to 4096 characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(transparent)]
pub struct UriPattern(#[schemars(length(min = 1, max = 4096))] String);

/// A host to match, in lower case: `example.com`, `*.example.com` or `*`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct HostPattern(String);

/// Hosts that a [`HostPattern`] matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKind<'a> {
    /// Every host.
    Any,
    /// Hosts that end in this text and have something before it.
    Suffix(&'a str),
    /// This host alone. With a colon, the host with its port.
    Exact(&'a str),
}

/// A set of methods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Methods(u16);

/// The methods that a route can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the variants are the methods
#[rustfmt::skip]
pub enum Method { Get, Post, Put, Delete, Patch, Head, Options, Connect, Trace, Purge }

/// An IP address or a range of them: `127.0.0.1`, `10.0.0.0/8`, `::1`, `fd00::/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddrRange(IpNet);

/// Conditions on a request: a list of `[variable, operator, value]`, all of which must hold.
#[derive(Clone, Debug)]
pub struct Vars {
    source: Value,
    expr: Expr,
    /// Bytes that the regular expressions take.
    size: u64,
}

impl UriPattern {
    /// The text as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de> Deserialize<'de> for UriPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        match text.chars().count() {
            1..=4096 => Ok(Self(text)),
            _ => Err(D::Error::invalid_value(Unexpected::Str(&text), &"a path of 1 to 4096 characters")),
        }
    }
}

const HOST_EXPECTED: &str = "a host such as example.com, *.example.com or *";

impl HostPattern {
    /// Takes a text that is a host pattern; `None` for one that is not.
    pub fn new(text: &str) -> Option<Self> {
        let rest = text.strip_prefix('*').unwrap_or(text);
        let allowed = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'[' | b']' | b':');
        (!text.is_empty() && rest.bytes().all(allowed)).then(|| Self(text.to_ascii_lowercase()))
    }

    /// The text in lower case.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The hosts that the pattern matches.
    pub fn kind(&self) -> HostKind<'_> {
        match self.0.strip_prefix('*') {
            Some("") => HostKind::Any,
            Some(suffix) => HostKind::Suffix(suffix),
            None => HostKind::Exact(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for HostPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).ok_or_else(|| D::Error::invalid_value(Unexpected::Str(&text), &HOST_EXPECTED))
    }
}

impl JsonSchema for HostPattern {
    fn schema_name() -> Cow<'static, str> {
        "HostPattern".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string", "minLength": 1, "pattern": r"^(\*|\*?[0-9a-zA-Z._\[\]:-]+)$",
            "x-expected": HOST_EXPECTED
        })
    }
}

impl Method {
    /// All methods, in the order of the reference.
    pub const ALL: [Self; 10] = [
        Self::Get,
        Self::Post,
        Self::Put,
        Self::Delete,
        Self::Patch,
        Self::Head,
        Self::Options,
        Self::Connect,
        Self::Trace,
        Self::Purge,
    ];

    /// The method as it stands in a request line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Patch => "PATCH",
            Self::Head => "HEAD",
            Self::Options => "OPTIONS",
            Self::Connect => "CONNECT",
            Self::Trace => "TRACE",
            Self::Purge => "PURGE",
        }
    }

    /// The method of a request line; case matters (RFC 9110 section 9.1).
    pub fn from_token(token: &[u8]) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.as_str().as_bytes() == token)
    }
}

impl Methods {
    /// True if no method is named; a route without methods takes every method.
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// True if the method is named.
    pub fn contains(self, method: Method) -> bool {
        self.0 & (1 << method as u16) != 0
    }

    /// Adds a method.
    pub fn insert(&mut self, method: Method) {
        self.0 |= 1 << method as u16;
    }

    /// The methods, in the order of the reference.
    pub fn iter(self) -> impl Iterator<Item = Method> {
        Method::ALL.into_iter().filter(move |method| self.contains(*method))
    }
}

impl Serialize for Methods {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter().map(Method::as_str))
    }
}

impl<'de> Deserialize<'de> for Methods {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MethodsVisitor;
        impl<'de> Visitor<'de> for MethodsVisitor {
            type Value = Methods;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of methods in capital letters")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Methods, A::Error> {
                let mut methods = Methods::default();
                while let Some(token) = seq.next_element::<Cow<'de, str>>()? {
                    let method = Method::from_token(token.as_bytes())
                        .ok_or_else(|| A::Error::invalid_value(Unexpected::Str(&token), &"a method"))?;
                    methods.insert(method);
                }
                Ok(methods)
            }
        }
        deserializer.deserialize_seq(MethodsVisitor)
    }
}

impl JsonSchema for Methods {
    fn schema_name() -> Cow<'static, str> {
        "Methods".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array", "uniqueItems": true,
            "items": { "type": "string", "enum": Method::ALL.map(Method::as_str) }
        })
    }
}

const ADDR_EXPECTED: &str = "an IPv4 or IPv6 address, or a range of them such as 10.0.0.0/8";

impl AddrRange {
    /// Takes an address or a range; `None` for any other text. `unix:` stands for the clients of Unix sockets, as in
    /// nginx; they count as 0.0.0.0.
    pub fn new(text: &str) -> Option<Self> {
        if text == UNIX {
            return Some(Self(IpAddr::from([0; 4]).into()));
        }
        match text.parse::<IpAddr>() {
            Ok(address) => Some(Self(address.into())),
            // Host bits that are set do no harm: the prefix determines the range.
            Err(_) => text.parse::<IpNet>().ok().map(|net| Self(net.trunc())),
        }
    }

    /// The range.
    pub fn net(&self) -> IpNet {
        self.0
    }

    /// True if the address is in the range. An IPv4 address mapped into IPv6 counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

impl fmt::Display for AddrRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.prefix_len() == self.0.max_prefix_len() { self.0.addr().fmt(f) } else { self.0.fmt(f) }
    }
}

impl Serialize for AddrRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for AddrRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'de, str>::deserialize(deserializer)?;
        Self::new(&text).ok_or_else(|| coded(Code::NotAddressRange { expected: ADDR_EXPECTED, found: quoted(&text) }))
    }
}

impl JsonSchema for AddrRange {
    fn schema_name() -> Cow<'static, str> {
        "AddrRange".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "format": "ip-or-cidr", "x-expected": ADDR_EXPECTED })
    }
}

impl Vars {
    /// Compiles conditions; the error describes their fault.
    pub fn new(source: Value) -> Result<Self, weir_expr::ExprError> {
        let before = weir_expr::spent();
        let expr = Expr::parse(&source)?;
        Ok(Self { source, expr, size: weir_expr::spent() - before })
    }

    /// Bytes that its regular expressions take, where it was compiled within a budget (`weir_expr::metered`); else 0.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The compiled conditions.
    pub fn expr(&self) -> &Expr {
        &self.expr
    }

    /// The conditions as they were written.
    pub fn source(&self) -> &Value {
        &self.source
    }
}

impl PartialEq for Vars {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Serialize for Vars {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.source.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Vars {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::new(Value::deserialize(deserializer)?).map_err(|error| {
            let at = if error.path.is_empty() { String::new() } else { format!("{}: ", error.path) };
            let nearest = error.nearest.map(|name| format!(" (did you mean '{name}'?)")).unwrap_or_default();
            coded(Code::ConditionInside { at, fault: error.fault, reason: error.message, nearest })
        })
    }
}

impl JsonSchema for Vars {
    fn schema_name() -> Cow<'static, str> {
        "Vars".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "array", "x-expected": "a list of conditions: [[variable, operator, value], …]" })
    }
}
