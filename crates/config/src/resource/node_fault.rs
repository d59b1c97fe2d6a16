use std::fmt;

use crate::code::Texts;

/// Reasons why a text is no node of an upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeFault {
    /// A Unix socket in nginx's or another spelling.
    UnixForm,
    /// The path of a Unix socket is wrong.
    UnixPath(&'static str),
    /// A Unix socket with a port.
    UnixPort,
    /// No IPv6 address between brackets.
    NotIpv6,
    /// An IPv6 address without brackets.
    BareIpv6,
    /// A host of no characters.
    EmptyHost,
    /// Nearly the name of a service.
    ServiceForm,
    /// The name of a service with a port.
    ServicePort,
    /// A URL.
    Scheme,
    /// A host with a path.
    Path,
    /// Characters that no host name has.
    NotAHost,
    /// No number of a port.
    Port {
        /// The text, in quotes.
        found: String,
    },
}

impl fmt::Display for NodeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnixForm => "a Unix socket is written unix:/run/app.sock",
            Self::UnixPath(reason) => reason,
            Self::UnixPort => "a Unix socket has no port",
            Self::NotIpv6 => "not an IPv6 address",
            Self::BareIpv6 => "an IPv6 address must stand in brackets: [::1]",
            Self::EmptyHost => "the host is empty",
            Self::ServiceForm => "the name of a service is _SERVICE._tcp.DOMAIN",
            Self::ServicePort => "the ports of a service come from its SRV records: expected none here",
            Self::Scheme => "a node is HOST:PORT without a scheme",
            Self::Path => "a node is HOST:PORT without a path",
            Self::NotAHost => "not a host name or an address",
            Self::Port { found } => return write!(f, "expected a port from 1 to 65535, found {found}"),
        })
    }
}

impl Texts for NodeFault {
    fn visit(&mut self, _: &'static str, each: &mut dyn FnMut(&'static str, &mut String)) {
        if let Self::Port { found } = self {
            each("found", found);
        }
    }
}
