//! Calls of gRPC: one message to a service, and one back.
//!
//! A call is a callout over HTTP/2 whose body is one message with its length before it; the result of the call stands in the
//! trailers of the answer. The source of the form is "gRPC over HTTP2" (PROTOCOL-HTTP2.md of gRPC).

use std::fmt;

use weir_wire::method::Method;
use weir_wire::name::FieldName;

use crate::callout::{CalloutError, CalloutResponse, Io};
use crate::service::Service;

/// Length of what stands before a message: a flag for compression, and the length of the message in four bytes.
const PREFIX: usize = 5;

/// A message behind its length; `None` for one of 4 GiB or more.
pub fn frame(write: impl FnOnce(&mut Vec<u8>)) -> Option<Vec<u8>> {
    let mut framed = vec![0; PREFIX];
    write(&mut framed);
    let length = u32::try_from(framed.len() - PREFIX).ok()?;
    framed.get_mut(1..PREFIX)?.copy_from_slice(&length.to_be_bytes());
    Some(framed)
}

/// The only message of a body.
///
/// # Errors
/// The body is anything else.
pub fn only_message(body: &[u8]) -> Result<&[u8], &'static str> {
    match body.split_first_chunk::<PREFIX>() {
        Some(([0, length @ ..], message)) if u32::from_be_bytes(*length) as usize == message.len() => Ok(message),
        Some(([0, ..], _)) => Err("the answer is not one message"),
        _ => Err("the answer is compressed, or no message"),
    }
}

/// A method of a service, with what its calls send.
#[derive(Debug)]
pub struct GrpcMethod {
    service: Service,
    /// `/PACKAGE.SERVICE/METHOD`.
    path: &'static [u8],
    content_type: FieldName,
    status: FieldName,
    message: FieldName,
}

/// Reasons for a call without a message.
#[derive(Debug, PartialEq, Eq)]
pub enum GrpcError {
    /// The service cannot be reached, or has not answered in time.
    Callout(CalloutError),
    /// The answer has another status than 200: it is not one of gRPC.
    Http(u16),
    /// The service has answered with this status of gRPC other than 0, and a text.
    Status(u32, String),
    /// The answer breaks the protocol.
    Malformed(&'static str),
}

impl fmt::Display for GrpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Callout(error) => f.write_str(error.reason()),
            Self::Http(status) => write!(f, "the server answers {status} and not in gRPC"),
            Self::Status(status, message) => write!(f, "grpc-status {status}: {message}"),
            Self::Malformed(reason) => f.write_str(reason),
        }
    }
}

impl GrpcMethod {
    /// The method of a service, `/PACKAGE.SERVICE/METHOD`.
    #[must_use]
    pub fn new(service: Service, path: &'static str) -> Self {
        Self {
            service,
            path: path.as_bytes(),
            content_type: FieldName::constant("content-type"),
            status: FieldName::constant("grpc-status"),
            message: FieldName::constant("grpc-message"),
        }
    }

    /// Sends a message and waits for the one that comes back. The timeouts of the service hold, and the deadline of the hook.
    ///
    /// # Errors
    /// There is none.
    pub async fn call(&self, io: &dyn Io, message: &[u8]) -> Result<Vec<u8>, GrpcError> {
        let mut question = self.service.callout_to(Method::Post, self.path);
        question.add_field(&self.content_type, b"application/grpc");
        let body = frame(|out| out.extend_from_slice(message)).ok_or(GrpcError::Malformed("a message is too long"))?;
        question.set_body(&body);
        let answer = io.callout(question).await.map_err(GrpcError::Callout)?;
        self.message_of(&answer)
    }

    fn message_of(&self, answer: &CalloutResponse) -> Result<Vec<u8>, GrpcError> {
        if answer.status() != 200 {
            return Err(GrpcError::Http(answer.status()));
        }
        // Without a message the trailers are the head.
        let told = |name| answer.trailer(name).or_else(|| answer.field(name));
        let status = told(&self.status).and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        match status {
            Some(0) => {}
            Some(status) => {
                let text = told(&self.message).map(|text| String::from_utf8_lossy(text).chars().take(256).collect());
                return Err(GrpcError::Status(status, text.unwrap_or_default()));
            }
            None => return Err(GrpcError::Malformed("the answer has no grpc-status")),
        }
        only_message(answer.body()).map(<[u8]>::to_vec).map_err(GrpcError::Malformed)
    }
}

#[cfg(test)]
mod tests {
    use super::{GrpcError, GrpcMethod};
    use crate::buffers::Held;
    use crate::callout::CalloutResponse;
    use crate::service::Service;

    #[test]
    fn answers_are_one_message_and_a_status() {
        let method = GrpcMethod::new(Service::default(), "/a.B/C");
        let malformed = |reason| Err(GrpcError::Malformed(reason));
        let refused = Err(GrpcError::Status(7, "no".to_owned()));
        // Status, `grpc-status` of the head, and of the trailers with its message.
        type Case = (u16, &'static str, &'static str, &'static [u8], Result<Vec<u8>, GrpcError>);
        let cases: [Case; 8] = [
            (200, "", "0", b"\0\0\0\0\x02ab", Ok(b"ab".to_vec())),
            (200, "", "0", b"\0\0\0\0\0", Ok(Vec::new())),
            (200, "", "7 no", b"", refused),
            (200, "7", "", b"", Err(GrpcError::Status(7, String::new()))),
            (200, "", "", b"\0\0\0\0\0", malformed("the answer has no grpc-status")),
            (200, "", "0", b"\0\0\0\0\x02abc", malformed("the answer is not one message")),
            (200, "", "0", b"\x01\0\0\0\x01a", malformed("the answer is compressed, or no message")),
            (502, "", "", b"", Err(GrpcError::Http(502))),
        ];
        for (status, head, trailers, body, expected) in cases {
            let line = |name: &'static str, value: &'static str| {
                Some((name.as_bytes(), value.as_bytes())).into_iter().filter(|(_, value)| !value.is_empty())
            };
            let (told, message) = trailers.split_once(' ').unwrap_or((trailers, ""));
            let answer = CalloutResponse::new(status, line("grpc-status", head), body.to_vec(), Held::default());
            let answer = answer.with_trailers(line("grpc-status", told).chain(line("grpc-message", message)));
            assert_eq!(method.message_of(&answer), expected, "{status} {head} {trailers}");
        }
    }
}
