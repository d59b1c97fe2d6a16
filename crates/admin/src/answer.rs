//! What a handler gives back, and the forms that APISIX's answers have.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use weir_store::StoreError;

/// What becomes of a request: an answer, or one that says why not. Both go to the client alike.
pub(crate) type Outcome = Result<Answer, Answer>;

/// An answer in the making.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) fields: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Body,
    /// Whether it carries `X-API-VERSION`, which some of APISIX's refusals do not.
    pub(crate) versioned: bool,
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Body {
    /// All of it.
    Whole(Option<Bytes>),
    /// All of much, of which only so much may be held for clients at one time.
    Large { body: Option<Bytes>, _turn: OwnedSemaphorePermit },
    /// A piece after the other, as they come.
    Stream(mpsc::Receiver<Bytes>),
}

impl Answer {
    /// A JSON body, which ends with a line's end as APISIX's do.
    pub(crate) fn json(status: StatusCode, body: &Value) -> Self {
        Self::text(status, body.to_string())
    }

    /// A body that is JSON already, without the line's end.
    pub(crate) fn text(status: StatusCode, mut body: String) -> Self {
        body.push('\n');
        Self { status, fields: Vec::new(), body: Body::Whole(Some(body.into())), versioned: true }
    }

    /// Without a body.
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self { status, fields: Vec::new(), body: Body::Whole(None), versioned: true }
    }

    /// `{"error_msg": …}`
    pub(crate) fn error(status: StatusCode, message: impl Into<String>) -> Self {
        Self::json(status, &json!({ "error_msg": message.into() }))
    }

    /// A refusal of what the client sent.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::error(StatusCode::BAD_REQUEST, message)
    }

    /// A fault of this program, of which the error log tells.
    pub(crate) fn internal() -> Self {
        Self::error(StatusCode::INTERNAL_SERVER_ERROR, "internal error: the error log tells more")
    }

    /// There is no such resource.
    pub(crate) fn no_such_key() -> Self {
        Self::json(StatusCode::NOT_FOUND, &json!({ "message": "Key not found" }))
    }

    /// A refusal that is a text, where others are JSON.
    pub(crate) fn bad_text(text: &'static str) -> Self {
        let text = Bytes::from_static(text.as_bytes());
        Self { body: Body::Whole(Some(text)), ..Self::empty(StatusCode::BAD_REQUEST) }
    }

    /// The store did not do it.
    pub(crate) fn store(error: &StoreError) -> Self {
        let status = match error {
            StoreError::Conflict { .. } => StatusCode::CONFLICT,
            StoreError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            StoreError::Refused(_) => StatusCode::BAD_REQUEST,
        };
        Self::error(status, error.to_string())
    }

    /// Adds a field.
    pub(crate) fn with(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.fields.push((name, value));
        self
    }

    /// Without `X-API-VERSION`.
    pub(crate) fn unversioned(mut self) -> Self {
        self.versioned = false;
        self
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let mut response = Response::new(self.body);
        *response.status_mut() = self.status;
        for (name, value) in self.fields {
            response.headers_mut().append(name, value);
        }
        response
    }
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = |piece: Option<Bytes>| piece.map(|piece| Ok(Frame::data(piece)));
        match self.get_mut() {
            Self::Whole(body) | Self::Large { body, .. } => Poll::Ready(frame(body.take())),
            Self::Stream(pieces) => pieces.poll_recv(cx).map(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None) | Self::Large { body: None, .. })
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) | Self::Large { body, .. } => {
                SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64))
            }
            Self::Stream(_) => SizeHint::default(),
        }
    }
}
