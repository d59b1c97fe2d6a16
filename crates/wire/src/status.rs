//! Status codes and their reason phrases (RFC 9110 section 15 and the IANA registry).

/// Defines the lookups from one table.
macro_rules! phrases {
    ($($status:literal $phrase:literal,)*) => {
        /// Registered reason phrase of a status code; empty for an unknown code.
        #[must_use]
        pub const fn reason(status: u16) -> &'static str {
            match status {
                $($status => $phrase,)*
                _ => "",
            }
        }

        /// Complete status line of a registered code.
        const fn line(status: u16) -> Option<&'static str> {
            match status {
                $($status => Some(concat!("HTTP/1.1 ", $status, " ", $phrase, "\r\n")),)*
                _ => None,
            }
        }
    };
}

phrases! {
    100 "Continue",
    101 "Switching Protocols",
    102 "Processing",
    103 "Early Hints",
    200 "OK",
    201 "Created",
    202 "Accepted",
    203 "Non-Authoritative Information",
    204 "No Content",
    205 "Reset Content",
    206 "Partial Content",
    207 "Multi-Status",
    208 "Already Reported",
    226 "IM Used",
    300 "Multiple Choices",
    301 "Moved Permanently",
    302 "Found",
    303 "See Other",
    304 "Not Modified",
    305 "Use Proxy",
    307 "Temporary Redirect",
    308 "Permanent Redirect",
    400 "Bad Request",
    401 "Unauthorized",
    402 "Payment Required",
    403 "Forbidden",
    404 "Not Found",
    405 "Method Not Allowed",
    406 "Not Acceptable",
    407 "Proxy Authentication Required",
    408 "Request Timeout",
    409 "Conflict",
    410 "Gone",
    411 "Length Required",
    412 "Precondition Failed",
    413 "Content Too Large",
    414 "URI Too Long",
    415 "Unsupported Media Type",
    416 "Range Not Satisfiable",
    417 "Expectation Failed",
    421 "Misdirected Request",
    422 "Unprocessable Content",
    423 "Locked",
    424 "Failed Dependency",
    425 "Too Early",
    426 "Upgrade Required",
    428 "Precondition Required",
    429 "Too Many Requests",
    431 "Request Header Fields Too Large",
    451 "Unavailable For Legal Reasons",
    500 "Internal Server Error",
    501 "Not Implemented",
    502 "Bad Gateway",
    503 "Service Unavailable",
    504 "Gateway Timeout",
    505 "HTTP Version Not Supported",
    506 "Variant Also Negotiates",
    507 "Insufficient Storage",
    508 "Loop Detected",
    511 "Network Authentication Required",
}

/// True if a response with this status never has a body, regardless of its fields (RFC 9112 section 6.3).
#[must_use]
pub const fn is_bodyless(status: u16) -> bool {
    matches!(status, 100..=199 | 204 | 304)
}

/// Appends a status line such as `HTTP/1.1 404 Not Found`, including its line end.
pub fn push_line(out: &mut Vec<u8>, status: u16) {
    if let Some(line) = line(status) {
        out.extend_from_slice(line.as_bytes());
        return;
    }
    out.extend_from_slice(b"HTTP/1.1 ");
    crate::push_number(out, u64::from(status));
    out.extend_from_slice(b" \r\n");
}

#[cfg(test)]
mod tests {
    use super::{push_line, reason};

    #[test]
    fn a_line_has_the_code_and_its_phrase() {
        for status in 100..=999 {
            let mut out = b"x".to_vec();
            push_line(&mut out, status);
            assert_eq!(out, format!("xHTTP/1.1 {status} {}\r\n", reason(status)).into_bytes());
        }
    }
}
