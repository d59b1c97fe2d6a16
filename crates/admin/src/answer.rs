//! Answers of handlers, in the forms that APISIX's answers have.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body as HttpBody, Frame, SizeHint};
use hyper::header::{HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use weir_store::StoreError;

use crate::seats::Streaming;
use crate::turns::Held;

/// Outcome of a request: an answer, or a refusal. Both go to the client alike.
pub(crate) type Outcome = Result<Answer, Answer>;

/// An answer in the making.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) fields: Vec<(HeaderName, HeaderValue)>,
    pub(crate) body: Body,
    /// True if the answer carries `X-API-VERSION`, which some of APISIX's refusals do not.
    pub(crate) versioned: bool,
    /// True for a body that takes no memory of its own.
    pub(crate) is_shared: bool,
    /// The share that was held for the request already.
    pub(crate) held: Option<Held>,
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum Body {
    /// All of it.
    Whole(Option<Bytes>),
    /// A piece after the other, made as fast as they are read.
    Pieces(Pieces),
    /// A piece after the other, as they come; the connection keeps its place meanwhile.
    Stream(mpsc::Receiver<Bytes>, Option<Streaming>),
}

/// A body that is made while it is read.
pub(crate) struct Pieces {
    next: Box<dyn FnMut() -> Option<Bytes> + Send>,
    /// About so many bytes.
    pub(crate) bytes: usize,
    pub(crate) turn: Held,
}

impl Pieces {
    /// Bytes of a piece, if what it is made of is not more.
    const PIECE: usize = 64 * 1024;

    /// The texts of items between a beginning and an end, with a separator between two of them.
    pub(crate) fn of_list<T: Send + 'static>(
        (begin, items, end): (String, Vec<T>, String),
        bytes: usize,
        turn: Held,
        separator: &'static str,
        write: impl Fn(&T, &mut String) + Send + 'static,
    ) -> Self {
        let (mut begin, mut end, mut items) = (Some(begin), Some(end), items.into_iter().peekable());
        let next = move || {
            let mut piece = begin.take().unwrap_or_default();
            while piece.len() < Self::PIECE
                && let Some(item) = items.next()
            {
                write(&item, &mut piece);
                if items.peek().is_some() {
                    piece.push_str(separator);
                }
            }
            if items.peek().is_none() {
                piece.push_str(&end.take()?);
            }
            Some(Bytes::from(piece))
        };
        Self { next: Box::new(next), bytes, turn }
    }
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pieces").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

impl Answer {
    /// A JSON body, which ends with a line's end as APISIX's do.
    pub(crate) fn json(status: StatusCode, body: &Value) -> Self {
        Self::text(status, body.to_string())
    }

    /// A body that is JSON already, without the line's end.
    pub(crate) fn text(status: StatusCode, mut body: String) -> Self {
        body.push('\n');
        Self::exact(status, body)
    }

    /// A body as it is.
    pub(crate) fn exact(status: StatusCode, body: String) -> Self {
        Self { body: Body::Whole(Some(body.into())), ..Self::empty(status) }
    }

    /// A body of JSON that is made while it is read.
    pub(crate) fn pieces(pieces: Pieces) -> Self {
        Self { body: Body::Pieces(pieces), ..Self::empty(StatusCode::OK) }
    }

    /// A body that many share.
    pub(crate) fn shared(body: Bytes) -> Self {
        Self { body: Body::Whole(Some(body)), is_shared: true, ..Self::empty(StatusCode::OK) }
    }

    /// Without a body.
    pub(crate) fn empty(status: StatusCode) -> Self {
        Self { status, fields: Vec::new(), body: Body::Whole(None), versioned: true, is_shared: false, held: None }
    }

    /// `{"error_msg": …}`
    pub(crate) fn error(status: StatusCode, message: impl Into<String>) -> Self {
        Self::json(status, &json!({ "error_msg": message.into() }))
    }

    /// A refusal of what the client sent.
    pub(crate) fn bad(message: impl Into<String>) -> Self {
        Self::error(StatusCode::BAD_REQUEST, message)
    }

    /// A fault of this program, which the error log describes.
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
            Self::Whole(body) => Poll::Ready(frame(body.take())),
            Self::Pieces(pieces) => Poll::Ready(frame((pieces.next)())),
            Self::Stream(pieces, _) => pieces.poll_recv(cx).map(frame),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(body) => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
            Self::Pieces(_) | Self::Stream(..) => SizeHint::default(),
        }
    }
}
