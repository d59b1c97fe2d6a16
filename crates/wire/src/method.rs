//! Request methods (RFC 9110 section 9).

/// A request method. Methods are case-sensitive; any token is a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[allow(missing_docs, reason = "the names are the registered methods")]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Patch,
    Options,
    Connect,
    Trace,
    Purge,
    Propfind,
    Mkcol,
    Copy,
    Move,
    Lock,
    Unlock,
    /// Any other token; the head has its bytes.
    Other,
}

impl Method {
    /// Method with this name.
    #[must_use]
    pub fn parse(name: &[u8]) -> Self {
        match name {
            b"GET" => Self::Get,
            b"HEAD" => Self::Head,
            b"POST" => Self::Post,
            b"PUT" => Self::Put,
            b"DELETE" => Self::Delete,
            b"PATCH" => Self::Patch,
            b"OPTIONS" => Self::Options,
            b"CONNECT" => Self::Connect,
            b"TRACE" => Self::Trace,
            b"PURGE" => Self::Purge,
            b"PROPFIND" => Self::Propfind,
            b"MKCOL" => Self::Mkcol,
            b"COPY" => Self::Copy,
            b"MOVE" => Self::Move,
            b"LOCK" => Self::Lock,
            b"UNLOCK" => Self::Unlock,
            _ => Self::Other,
        }
    }

    /// Name of the method; empty for [`Method::Other`].
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
            Self::Patch => "PATCH",
            Self::Options => "OPTIONS",
            Self::Connect => "CONNECT",
            Self::Trace => "TRACE",
            Self::Purge => "PURGE",
            Self::Propfind => "PROPFIND",
            Self::Mkcol => "MKCOL",
            Self::Copy => "COPY",
            Self::Move => "MOVE",
            Self::Lock => "LOCK",
            Self::Unlock => "UNLOCK",
            Self::Other => "",
        }
    }

    /// True if a request may be repeated after the server may have received it (RFC 9110 section 9.2.2).
    #[must_use]
    pub const fn is_idempotent(self) -> bool {
        matches!(self, Self::Get | Self::Head | Self::Put | Self::Delete | Self::Options | Self::Trace)
    }
}
