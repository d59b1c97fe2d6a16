//! HTTP/2 on bytes (RFC 9113): frames, header compression, priorities. No I/O and no state of streams.
//!
//! Frames are read from the connection's read buffer and appended to its write buffer, so a connection that serves
//! many streams writes all their frames at once. Nothing is allocated per frame or per field.

pub mod frame;
pub mod hpack;
pub mod priority;

/// Bytes that a client sends first (RFC 9113 section 3.4); its SETTINGS frame follows.
pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Initial size of a flow-control window, and of the connection's (RFC 9113 section 6.9.2).
pub const DEFAULT_WINDOW: u32 = 65_535;
/// Largest flow-control window (RFC 9113 section 6.9.1).
pub const MAX_WINDOW: u32 = (1 << 31) - 1;
/// Initial and smallest value of SETTINGS_MAX_FRAME_SIZE (RFC 9113 section 6.5.2).
pub const DEFAULT_FRAME_SIZE: u32 = 1 << 14;
/// Largest value of SETTINGS_MAX_FRAME_SIZE.
pub const MAX_FRAME_SIZE: u32 = (1 << 24) - 1;
/// Largest stream identifier.
pub const MAX_STREAM: u32 = (1 << 31) - 1;

/// Code of RST_STREAM and GOAWAY (RFC 9113 section 7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are the registered error codes")]
pub enum ErrorCode {
    NoError,
    ProtocolError,
    InternalError,
    FlowControlError,
    SettingsTimeout,
    StreamClosed,
    FrameSizeError,
    RefusedStream,
    Cancel,
    CompressionError,
    ConnectError,
    EnhanceYourCalm,
    InadequateSecurity,
    Http11Required,
    /// A code that is not registered. It has no meaning of its own and is treated as INTERNAL_ERROR.
    Other(u32),
}

/// Registered codes, each at the place of its number.
const CODES: [(ErrorCode, &str); 14] = [
    (ErrorCode::NoError, "NO_ERROR"),
    (ErrorCode::ProtocolError, "PROTOCOL_ERROR"),
    (ErrorCode::InternalError, "INTERNAL_ERROR"),
    (ErrorCode::FlowControlError, "FLOW_CONTROL_ERROR"),
    (ErrorCode::SettingsTimeout, "SETTINGS_TIMEOUT"),
    (ErrorCode::StreamClosed, "STREAM_CLOSED"),
    (ErrorCode::FrameSizeError, "FRAME_SIZE_ERROR"),
    (ErrorCode::RefusedStream, "REFUSED_STREAM"),
    (ErrorCode::Cancel, "CANCEL"),
    (ErrorCode::CompressionError, "COMPRESSION_ERROR"),
    (ErrorCode::ConnectError, "CONNECT_ERROR"),
    (ErrorCode::EnhanceYourCalm, "ENHANCE_YOUR_CALM"),
    (ErrorCode::InadequateSecurity, "INADEQUATE_SECURITY"),
    (ErrorCode::Http11Required, "HTTP_1_1_REQUIRED"),
];

impl ErrorCode {
    /// Code of a number.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        CODES.get(number as usize).map_or(Self::Other(number), |(code, _)| *code)
    }

    /// Number of the code.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Other(number) => number,
            code => CODES.iter().position(|(known, _)| *known == code).unwrap_or_default() as u32,
        }
    }

    /// Name as RFC 9113 writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        CODES.get(self.number() as usize).map_or("unregistered code", |(_, name)| name)
    }
}

/// Part of the peer's traffic that an error ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The stream of the frame, by RST_STREAM (RFC 9113 section 5.4.2).
    Stream,
    /// The connection, by GOAWAY (RFC 9113 section 5.4.1).
    Connection,
}

/// Violation of the protocol: small, `Copy` and of constants, so that refusing is cheap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Error {
    /// Part of the traffic that has to end.
    pub scope: Scope,
    /// Code that the peer is told.
    pub code: ErrorCode,
    /// Short reason for the log, and for the debug data of GOAWAY.
    pub reason: &'static str,
}

impl Error {
    /// Error of a stream.
    #[must_use]
    pub const fn stream(code: ErrorCode, reason: &'static str) -> Self {
        Self { scope: Scope::Stream, code, reason }
    }

    /// Error of the connection.
    #[must_use]
    pub const fn connection(code: ErrorCode, reason: &'static str) -> Self {
        Self { scope: Scope::Connection, code, reason }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.code.name(), self.reason)
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::{CODES, ErrorCode};

    #[test]
    fn codes_stand_at_their_numbers() {
        for (number, (code, _)) in CODES.iter().enumerate() {
            assert_eq!((code.number() as usize, ErrorCode::from_number(number as u32)), (number, *code));
        }
        for number in [14, u32::MAX] {
            assert_eq!(ErrorCode::from_number(number), ErrorCode::Other(number));
            assert_eq!(ErrorCode::Other(number).number(), number);
        }
    }
}
