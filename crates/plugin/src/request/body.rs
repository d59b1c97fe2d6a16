//! The body of a request: collected, replaced or changed by plugins, and read by variables.

use weir_expr::{BodyPath, Value};
use weir_wire::head::Content;
use weir_wire::method::Method;
use weir_wire::name::Known;

use super::{DIGESTS, Request};
use crate::values::{GraphqlSource, Media, Part, Values};

impl Request {
    /// The whole body, decoded; `None` while it has not been collected.
    #[must_use]
    pub fn body(&self) -> Option<&[u8]> {
        match self.head.content {
            _ if self.masked_body.is_some() => self.masked_body.as_deref(),
            _ if self.replaced => Some(&self.changed),
            Content::None => Some(&[]),
            Content::Length(len) if self.collected => {
                let end = self.head_len.checked_add(usize::try_from(len).ok()?)?;
                self.buffer.bytes().get(self.head_len..end)
            }
            _ => None,
        }
    }

    /// True when the client's whole body is here, be it that it sent none.
    #[must_use]
    pub fn is_collected(&self) -> bool {
        self.collected || self.head.content == Content::None
    }

    /// Replaces the body. Digests of the old one go (RFC 9530), for they would be false.
    /// Puts another body in the place of the client's for whoever still looks at the request, which is over; `None`: nothing of the
    /// body may be written down. For logs.
    pub fn mask_body(&mut self, body: Option<Vec<u8>>) {
        self.masked_body = Some(body.unwrap_or_default());
        self.forget_values();
    }

    /// True if the body is another one for logs, or none: then nothing else that was kept of it may be written down.
    #[must_use]
    pub fn is_body_masked(&self) -> bool {
        self.masked_body.is_some()
    }

    pub(crate) fn replace_body(&mut self, body: &[u8]) {
        self.changed.clear();
        self.changed.extend_from_slice(body);
        self.replaced = true;
        self.forget_values();
        for name in DIGESTS {
            self.head.fields.remove_str(self.buffer.bytes(), name);
        }
    }

    pub(crate) fn filter_body(&mut self) {
        self.filtered = true;
    }

    /// True when a plugin has replaced the body by [`Request::changed`], which does not stand behind the head yet.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.replaced
    }

    /// True when plugins change the body on its way to the node.
    #[must_use]
    pub fn is_filtered(&self) -> bool {
        self.filtered
    }

    /// Takes note that plugins have seen the whole body, or that there is none to see.
    pub fn end_filter(&mut self) {
        self.filtered = false;
    }

    /// Leaves the length of the body open, for plugins may change it on its way.
    pub fn open_body(&mut self) {
        self.head.fields.remove_known(Known::ContentLength);
        self.head.content = Content::Unknown;
    }

    /// Forgets what plugins wanted of the body.
    #[inline]
    pub(crate) fn forget_changes(&mut self) {
        self.replaced = false;
        self.filtered = false;
    }

    /// Takes in the whole body: it stands in the buffer from now on in place of what was received of it, up to `end`,
    /// and the request is one with a `Content-Length`, whatever framed it before.
    pub fn put_body(&mut self, body: &[u8], end: usize) {
        self.buffer.replace(self.head_len, end, body);
        let fields = &mut self.head.fields;
        fields.remove_known(Known::ContentLength);
        fields.add_with(b"Content-Length", |out| weir_wire::push_number(out, body.len() as u64));
        self.keep_body(body.len());
    }

    /// Takes in the whole body, which stands in the buffer as it was sent, with its length.
    pub fn keep_body(&mut self, len: usize) {
        let fields = &mut self.head.fields;
        // Trailer fields came with the chunks and are gone with them (RFC 9112 section 7.1.2); nobody has to be asked
        // any more whether the body may be sent (RFC 9110 section 10.1.1).
        fields.remove_known(Known::Trailer);
        fields.remove_known(Known::Expect);
        self.head.expect_continue = false;
        self.head.content = Content::Length(len as u64);
        self.collected = true;
        self.replaced = false;
    }

    /// The first field with this name of a form in the body, decoded.
    #[must_use]
    pub fn post_argument(&self, name: &[u8]) -> Option<Value<'_>> {
        if self.media() != Media::Form {
            return None;
        }
        self.body_for_values().and_then(|body| self.values().form_field(body, name))
    }

    /// The value at a path of the body: of JSON, or a field of a form.
    #[must_use]
    pub fn post_field(&self, path: &BodyPath) -> Option<Value<'_>> {
        let media = self.media();
        if media == Media::Other {
            return None;
        }
        self.body_for_values().and_then(|body| self.values().at_path(body, media, path))
    }

    /// A part of the GraphQL operation that the request asks for.
    pub(crate) fn graphql(&self, part: Part) -> Option<Value<'_>> {
        let argument = |name: &[u8]| match self.argument(name)? {
            Value::Bytes(text) => Some(text),
            _ => None,
        };
        let source = || match self.method() {
            Method::Get => {
                let operation_name = argument(b"operationName");
                argument(b"query").map(|text| GraphqlSource::Query { text, operation_name })
            }
            _ => self.body_for_values().map(|body| match self.media() {
                Media::Json => GraphqlSource::Json(body),
                _ => GraphqlSource::Query { text: body, operation_name: None },
            }),
        };
        match self.method() {
            Method::Get => {}
            // Asked for before anything is kept of it: what is not here may come.
            Method::Post if self.body_for_values().is_some() => {}
            _ => return None,
        }
        self.values().graphql(source, part)
    }

    fn media(&self) -> Media<'_> {
        Media::of(self.head.fields.get_known(self.buffer.bytes(), Known::ContentType))
    }

    /// The body for variables. Where it has not been collected, notes that it is wanted.
    fn body_for_values(&self) -> Option<&[u8]> {
        match self.body() {
            Some(body) => Some(body).filter(|body| !body.is_empty() && body.len() as u64 <= self.values_limit),
            None => {
                if self.may_have_values() {
                    self.values().wants_body.set(true);
                }
                None
            }
        }
    }

    /// True if there is a body for variables that has not been collected: one that is not known to be too long.
    #[must_use]
    pub fn may_have_values(&self) -> bool {
        match self.head.content {
            _ if self.replaced => false,
            Content::Length(length) => !self.collected && length <= self.values_limit,
            Content::None => false,
            _ => self.values_limit > 0,
        }
    }

    /// True if a variable was asked for that stands in the body, which has to be collected for it; asked once.
    #[inline]
    pub fn take_wish_for_body(&self) -> bool {
        self.values.get().is_some_and(|values| values.wants_body.take())
    }

    /// True if a variable has no value because there was no room for it in the budget for buffers.
    #[inline]
    #[must_use]
    pub fn lacks_room_for_values(&self) -> bool {
        self.values.get().is_some_and(|values| values.lacks_room.get())
    }

    fn values(&self) -> &Values {
        self.values.get_or_init(Box::default)
    }

    /// Forgets what variables have asked of the body.
    #[inline]
    pub(crate) fn forget_values(&mut self) {
        if self.values.get().is_some() {
            self.values.take();
        }
    }
}
