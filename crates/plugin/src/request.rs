//! The request as plugins see it.

mod body;

use std::cell::{OnceCell, RefCell};

use weir_expr::Value;
use weir_wire::buffer::Buffer;
use weir_wire::head::{Http1, Limits, RequestHead};
use weir_wire::method::Method;
use weir_wire::name::{FieldName, Known};
use weir_wire::query::{self, Argument};
use weir_wire::target::{self, Form, PathRules, Reading, Target};
use weir_wire::{Reject, Span};

use crate::arguments::ArgumentNames;
use crate::values::Values;

/// Fields that hold a digest of the content or of what it represents (RFC 9530 and those before it).
pub(crate) const DIGESTS: [&[u8]; 4] = [b"Content-MD5", b"Content-Digest", b"Repr-Digest", b"Digest"];

/// A request: its head, the one normalised path, and what plugins changed for the upstream.
#[derive(Debug)]
pub struct Request {
    /// The read buffer: the head, then what has been received of the body.
    pub buffer: Buffer,
    /// The head, as spans of the buffer.
    pub head: RequestHead,
    /// Bytes of the buffer that the head takes; the body stands behind it.
    pub head_len: usize,
    /// Positions of the target's parts.
    target: Target,
    /// Host in lower case, with its port.
    host: Vec<u8>,
    /// Bytes of `host` without the port.
    host_len: usize,
    /// The normalised path and the query as received, when the received path was not normal.
    decoded: Vec<u8>,
    /// Bytes of `decoded` that are the path.
    decoded_len: usize,
    /// The normalised path in the form in which it is sent.
    encoded: Vec<u8>,
    /// The query without the arguments that were taken out; valid with `query_edited`.
    edited_query: Vec<u8>,
    query_edited: bool,
    /// The query decoded, made when an argument is asked for and decoding changes something.
    decoded_query: OnceCell<Vec<u8>>,
    /// Room for the next one.
    spare: RefCell<Vec<u8>>,
    /// True if the whole body stands behind the head, decoded.
    collected: bool,
    /// The body that a plugin has made in place of the client's, or a piece of it as plugins have left it.
    pub changed: Vec<u8>,
    /// True when `changed` is the body, which does not stand behind the head yet.
    replaced: bool,
    /// True when plugins change the body on its way to the node.
    filtered: bool,
    /// Path and query as received, with the query that may be written down, once the exchange is over.
    masked_uri: Option<Vec<u8>>,
    /// The body as it may be written down, once the exchange is over.
    masked_body: Option<Vec<u8>>,
    /// Most bytes of a body that variables read; kept from request to request.
    pub values_limit: u64,
    /// Values of variables in the body.
    values: OnceCell<Box<Values>>,
    /// Changes to what the upstream receives.
    pub upstream: UpstreamTarget,
}

/// Another reading of the path of a request ([`Request::read_as`]).
#[derive(Debug, Default)]
pub struct OtherPath {
    decoded: Vec<u8>,
    decoded_len: usize,
    encoded: Vec<u8>,
}

impl OtherPath {
    /// The decoded path.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        self.decoded.get(..self.decoded_len).unwrap_or_default()
    }
}

/// Request line and Host for the upstream in the place of the client's own.
#[derive(Debug, Default)]
pub struct UpstreamTarget {
    /// The target, path and query, already encoded; empty: the client's, normalised.
    pub target: Vec<u8>,
    /// The method; `None`: the client's.
    pub method: Option<Method>,
    /// The Host; empty: by the upstream's `pass_host`.
    pub host: Vec<u8>,
    /// True if `host` takes precedence over an upstream that names one by its `pass_host`, as in Kong.
    pub host_wins: bool,
}

impl UpstreamTarget {
    /// Sets the Host, which takes precedence over an upstream that names one.
    pub fn set_host(&mut self, host: &[u8]) {
        self.host.clear();
        self.host.extend_from_slice(host);
        self.host_wins = true;
    }
}

impl Request {
    pub(crate) fn new(buffer: usize) -> Self {
        Self {
            buffer: Buffer::new(buffer),
            head: RequestHead::default(),
            head_len: 0,
            target: Target::default(),
            host: Vec::new(),
            host_len: 0,
            decoded: Vec::new(),
            decoded_len: 0,
            encoded: Vec::new(),
            edited_query: Vec::new(),
            query_edited: false,
            decoded_query: OnceCell::new(),
            spare: RefCell::default(),
            collected: false,
            changed: Vec::new(),
            replaced: false,
            filtered: false,
            masked_uri: None,
            masked_body: None,
            values_limit: 0,
            values: OnceCell::new(),
            upstream: UpstreamTarget::default(),
        }
    }

    /// Reads an HTTP/1 head from the front of the buffer; `None` when more bytes are needed.
    ///
    /// # Errors
    /// As [`RequestHead::parse`].
    #[inline]
    pub fn parse(&mut self, limits: &Limits) -> Result<Option<Http1>, Reject> {
        let found = self.head.parse(self.buffer.bytes(), limits)?;
        self.head_len = found.map_or(0, |http1| http1.len);
        Ok(found)
    }

    /// Takes in a head: splits the target, normalises the path, reads the host.
    ///
    /// # Errors
    /// 400 as in [`target::split`] and [`target::normalise`].
    pub fn accept_head(&mut self, rules: PathRules) -> Result<(), Reject> {
        self.forget_decoded_query();
        let base = self.buffer.bytes();
        let text = self.head.target.of(base);
        self.target = target::split(text)?;
        self.query_edited = false;
        self.collected = false;
        (self.masked_uri, self.masked_body) = (None, None);
        self.upstream.target.clear();
        self.upstream.method = None;
        self.upstream.host.clear();
        self.upstream.host_wins = false;
        let host = match self.target.authority {
            // RFC 9112 section 3.2.2: the target's host goes before the Host field.
            Some(authority) => {
                let host = authority.of(text);
                self.host_len = weir_wire::authority::parse(host)?.host.len();
                host
            }
            None => {
                self.host_len = self.head.host.map_or(0, |_| self.head.host_len);
                self.head.host.unwrap_or_default().of(base)
            }
        };
        self.host.clear();
        self.host.extend_from_slice(host);
        self.host.make_ascii_lowercase();
        // Rules that may change a path in normal form take the slow way as well.
        let path = self.target.path.unwrap_or_default().of(text);
        let tail = rules.delete_tail_slash && path.len() > 1 && path.last() == Some(&b'/');
        if !self.target.normal || tail || path.is_empty() {
            self.target.normal = false;
            target::normalise(path, rules, &mut self.decoded, &mut self.encoded)?;
            self.decoded_len = self.decoded.len();
            if let Some(query) = self.target.query.map(|query| query.of(text)).filter(|query| !query.is_empty()) {
                self.decoded.push(b'?');
                self.decoded.extend_from_slice(query);
            }
        }
        Ok(())
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> Method {
        self.head.method
    }

    /// The method's name.
    #[must_use]
    pub fn method_bytes(&self) -> &[u8] {
        self.head.method_span.of(self.buffer.bytes())
    }

    /// The form of the target.
    #[must_use]
    pub fn form(&self) -> Form {
        self.target.form
    }

    fn part(&self, span: Option<Span>) -> Option<&[u8]> {
        span.map(|s| s.of(self.head.target.of(self.buffer.bytes())))
    }

    /// The normalised, decoded path: what routes are matched against.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        match self.target.normal {
            true => self.part(self.target.path).unwrap_or(b"/"),
            false => self.decoded.get(..self.decoded_len).unwrap_or_default(),
        }
    }

    /// Puts another path, encoded, and query in the place of the client's, for everything that follows.
    ///
    /// # Errors
    /// 400 as in [`target::normalise`].
    pub(crate) fn set_path(&mut self, path: &[u8], query: &[u8]) -> Result<(), Reject> {
        let (mut decoded, mut encoded) = (Vec::new(), Vec::new());
        target::normalise(path, PathRules::default(), &mut decoded, &mut encoded)?;
        self.decoded_len = decoded.len();
        (self.decoded, self.encoded) = (decoded, encoded);
        (self.target.normal, self.target.query) = (false, None);
        self.upstream.target.clear();
        self.set_query(query);
        Ok(())
    }

    /// The normalised path in the form in which it is sent.
    #[must_use]
    pub fn encoded_path(&self) -> &[u8] {
        if self.target.normal { self.part(self.target.path).unwrap_or(b"/") } else { &self.encoded }
    }

    /// True when the path has `;` or `\`, which some servers read in another way.
    #[must_use]
    #[inline]
    pub fn has_other_readings(&self) -> bool {
        !self.target.normal && target::has_other_readings(self.path())
    }

    /// The path as a server with this reading has it. `None`: such a server refuses it, or nobody can say what it reads.
    #[must_use]
    pub fn read_as(&self, reading: Reading, rules: PathRules) -> Option<OtherPath> {
        let mut other = OtherPath::default();
        target::normalise(&reading.of(&self.encoded), rules, &mut other.decoded, &mut other.encoded).ok()?;
        other.decoded_len = other.decoded.len();
        other.decoded.extend_from_slice(self.decoded.get(self.decoded_len..).unwrap_or_default());
        Some(other)
    }

    /// Exchanges the path, which is not in normal form, for another reading of it, and back.
    pub fn swap_path(&mut self, other: &mut OtherPath) {
        debug_assert!(!self.target.normal);
        std::mem::swap(&mut self.decoded, &mut other.decoded);
        std::mem::swap(&mut self.decoded_len, &mut other.decoded_len);
        std::mem::swap(&mut self.encoded, &mut other.encoded);
    }

    /// The query as received, without `?` and without the arguments that plugins took out.
    #[must_use]
    pub fn query(&self) -> Option<&[u8]> {
        if self.query_edited {
            return Some(self.edited_query.as_slice()).filter(|q| !q.is_empty());
        }
        self.part(self.target.query)
    }

    /// Keeps only the query arguments, each as it was received, for which `keep` holds: for the plugins that follow and
    /// for the upstream. A target that a plugin has already rewritten stays as it is.
    pub fn retain_arguments(&mut self, mut keep: impl FnMut(&[u8]) -> bool) {
        let mut kept = std::mem::take(&mut self.edited_query);
        if !self.query_edited {
            kept.clear();
            kept.extend_from_slice(self.part(self.target.query).unwrap_or_default());
        }
        let (mut from, mut to) = (0, 0);
        while from < kept.len() {
            let rest = kept.get(from..).unwrap_or_default();
            let len = rest.iter().position(|b| *b == b'&').unwrap_or(rest.len());
            if keep(rest.get(..len).unwrap_or_default()) {
                if to > 0 {
                    if let Some(byte) = kept.get_mut(to) {
                        *byte = b'&';
                    }
                    to += 1;
                }
                kept.copy_within(from..from + len, to);
                to += len;
            }
            from += len + 1;
        }
        kept.truncate(to);
        self.edited_query = kept;
        self.query_edited = true;
        self.forget_decoded_query();
    }

    /// Takes all arguments of these names away, and adds others behind those that are left; names and values are decoded.
    pub fn replace_arguments<'a>(
        &mut self,
        names: impl Iterator<Item = &'a [u8]>,
        added: impl Iterator<Item = (&'a [u8], &'a [u8])>,
    ) {
        for name in names {
            self.retain_arguments(|argument| !query::has_name(argument, name));
        }
        let mut added = added.peekable();
        if added.peek().is_none() {
            return;
        }
        let mut whole = self.query().unwrap_or_default().to_vec();
        for (name, value) in added {
            if !whole.is_empty() {
                whole.push(b'&');
            }
            query::encode(name, &mut whole);
            whole.push(b'=');
            query::encode(value, &mut whole);
        }
        self.set_query(&whole);
    }

    /// Replaces the query, for the plugins that follow and for the upstream; an empty one is none. A target that a plugin has
    /// already rewritten stays as it is.
    pub fn set_query(&mut self, query: &[u8]) {
        self.edited_query.clear();
        self.edited_query.extend_from_slice(query);
        self.query_edited = true;
        self.forget_decoded_query();
    }

    /// Masks the values of these arguments for whoever still looks at the request, which is over: in the target, in what was
    /// made of it, and in a `Referer` with a query. For logs.
    pub fn mask_arguments(&mut self, names: &ArgumentNames) {
        let has = |text: &[u8]| {
            let query = text.iter().position(|b| *b == b'?').map(|at| at + 1);
            query.filter(|at| text.get(*at..).is_some_and(|query| names.are_in(query)))
        };
        if let Some(at) = has(self.received_target()) {
            let whole = self.head.target;
            let query = whole.start as usize + at..whole.end as usize;
            let len = query.len();
            let left = self.buffer.bytes_mut().get_mut(query).map_or(len, |query| names.mask(query));
            // The bytes behind the target keep their places: only the target becomes shorter.
            let cut = (len - left) as u32;
            self.head.target.end -= cut;
            if let Some(query) = &mut self.target.query {
                query.end = query.end.saturating_sub(cut).max(query.start);
            }
            if let Some(query) = self.decoded.get_mut(self.decoded_len + 1..) {
                let left = names.mask(query);
                self.decoded.truncate(self.decoded_len + 1 + left);
            }
            let left = names.mask(&mut self.edited_query);
            self.edited_query.truncate(left);
            self.forget_decoded_query();
        }
        let referer = self.head.fields.get_str(self.buffer.bytes(), b"referer");
        if let Some((text, at)) = referer.and_then(|text| Some((text, has(text)?))) {
            let mut text = text.to_vec();
            let left = text.get_mut(at..).map_or(0, |query| names.mask(query));
            text.truncate(at + left);
            self.head.fields.set_str(self.buffer.bytes(), b"Referer", &text);
        }
    }

    /// Puts another query in the place of the client's for whoever still looks at the request, which is over; an empty one is
    /// none. For logs.
    pub fn mask_query(&mut self, query: &[u8]) {
        let path = self.encoded_path().to_vec();
        // A path in normal form stays one.
        if self.set_path(&path, query).is_err() {
            return;
        }
        let received = self.real_request_uri();
        let end = received.iter().position(|byte| *byte == b'?').unwrap_or(received.len());
        let mut masked = received.get(..end).unwrap_or_default().to_vec();
        for uri in [&mut masked, &mut self.decoded].into_iter().filter(|_| !query.is_empty()) {
            uri.push(b'?');
            uri.extend_from_slice(query);
        }
        self.masked_uri = Some(masked);
        let received = self.received_target();
        let end = received.iter().position(|byte| *byte == b'?').unwrap_or(received.len());
        self.head.target.end = self.head.target.start + end as u32;
    }

    fn forget_decoded_query(&mut self) {
        if let Some(mut room) = self.decoded_query.take() {
            room.clear();
            *self.spare.get_mut() = room;
        }
    }

    /// Gives memory back that an unusually long query took, beyond this many bytes.
    #[inline]
    pub(crate) fn shrink(&mut self, keep: usize) {
        self.forget_decoded_query();
        self.forget_values();
        let spare = self.spare.get_mut();
        if spare.capacity() > keep {
            spare.shrink_to(keep);
        }
        if self.changed.capacity() > keep {
            self.changed = Vec::new();
        }
    }

    /// The target as received.
    #[must_use]
    pub fn received_target(&self) -> &[u8] {
        self.head.target.of(self.buffer.bytes())
    }

    /// Path and query as received: nginx's `$request_uri`, which lacks the scheme and the authority of a whole URI.
    #[must_use]
    pub fn real_request_uri(&self) -> &[u8] {
        if let Some(masked) = &self.masked_uri {
            return masked;
        }
        if self.target.form != Form::Absolute {
            return self.received_target();
        }
        match self.target.path {
            Some(path) => self.received_target().get(path.start as usize..).unwrap_or_default(),
            // The root, which the URI leaves out, and the query.
            None => &self.decoded,
        }
    }

    /// Appends path and query as received, without the arguments that plugins took out.
    pub fn write_real_request_uri(&self, out: &mut Vec<u8>) {
        let received = self.real_request_uri();
        if !self.query_edited {
            out.extend_from_slice(received);
            return;
        }
        let end = received.iter().position(|byte| *byte == b'?').unwrap_or(received.len());
        out.extend_from_slice(received.get(..end).unwrap_or_default());
        if let Some(query) = self.query() {
            out.push(b'?');
            out.extend_from_slice(query);
        }
    }

    /// The normalised, decoded path and the query as received: APISIX's `request_uri`, so that no spelling of a path
    /// gets past what looks at it.
    #[must_use]
    pub fn request_uri(&self) -> &[u8] {
        if !self.target.normal {
            return &self.decoded;
        }
        let received = self.real_request_uri();
        match self.part(self.target.query) {
            // A `?` with nothing behind it is no query.
            Some([]) => received.strip_suffix(b"?").unwrap_or(received),
            _ => received,
        }
    }

    /// Appends path and query as [`Request::request_uri`] has them, in the form in which they are sent.
    pub fn write_request_uri(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.encoded_path());
        if let Some(query) = self.part(self.target.query).filter(|query| !query.is_empty()) {
            out.push(b'?');
            target::encode_query(query, out);
        }
    }

    /// The first query argument with this name, decoded; `true` when it came without `=`.
    #[must_use]
    pub fn argument(&self, name: &[u8]) -> Option<Value<'_>> {
        let query = self.query()?;
        let decoded = if query::is_plain(query) { query } else { self.decoded_query(query) };
        Some(match query::find(query, decoded, name)? {
            Argument::Flag => Value::Boolean(true),
            Argument::Value(value) => Value::Bytes(value),
        })
    }

    /// The query arguments in order, with their names, decoded.
    pub fn arguments(&self) -> impl Iterator<Item = (&[u8], Argument<'_>)> {
        let query = self.query().unwrap_or_default();
        query::all(query, if query::is_plain(query) { query } else { self.decoded_query(query) })
    }

    fn decoded_query(&self, query: &[u8]) -> &[u8] {
        self.decoded_query.get_or_init(|| {
            let mut room = self.spare.take();
            query::decode(query, &mut room);
            room
        })
    }

    /// The first cookie with this name (RFC 6265 section 5.4).
    #[must_use]
    pub fn cookie(&self, name: &[u8]) -> Option<&[u8]> {
        let cookies = self.head.fields.get_known(self.buffer.bytes(), Known::Cookie)?;
        cookies.split(|b| *b == b';').map(weir_wire::trim_ows).find_map(|pair| match pair.strip_prefix(name)? {
            [b'=', value @ ..] => Some(value),
            _ => None,
        })
    }

    /// The host in lower case, without port; empty when there is none (HTTP/1.0).
    #[must_use]
    pub fn host(&self) -> &[u8] {
        self.host.get(..self.host_len).unwrap_or_default()
    }

    /// The host in lower case, with the port it came with.
    #[must_use]
    pub fn host_port(&self) -> &[u8] {
        &self.host
    }

    /// The port in the host, as text.
    #[must_use]
    pub fn port(&self) -> Option<&[u8]> {
        self.host.get(self.host_len + 1..).filter(|p| !p.is_empty())
    }

    /// The value of the first field with this name.
    #[must_use]
    pub fn field(&self, name: &FieldName) -> Option<&[u8]> {
        self.head.fields.get(self.buffer.bytes(), name)
    }

    /// The same, by text.
    #[must_use]
    pub fn field_str(&self, name: &str) -> Option<&[u8]> {
        self.head.fields.get_str(self.buffer.bytes(), name.as_bytes())
    }

    /// Replaces a field for the plugins that follow and for the upstream, and what a CGI there takes for it.
    pub fn set_field(&mut self, name: &FieldName, value: &[u8]) {
        self.head.fields.remove_lookalikes(self.buffer.bytes(), name);
        self.head.fields.set(self.buffer.bytes(), name, value);
    }

    /// Adds a field for the plugins that follow and for the upstream.
    pub fn add_field(&mut self, name: &FieldName, value: &[u8]) {
        self.head.fields.add(name.text(), value);
    }

    /// Removes a field, and what a CGI at the upstream takes for it.
    pub fn remove_field(&mut self, name: &FieldName) {
        self.head.fields.remove_lookalikes(self.buffer.bytes(), name);
        self.head.fields.remove(self.buffer.bytes(), name);
    }

    /// Appends the target that the upstream receives.
    pub fn write_upstream_target(&self, out: &mut Vec<u8>) {
        if !self.upstream.target.is_empty() {
            out.extend_from_slice(&self.upstream.target);
            return;
        }
        // The usual case: the received target is already what has to be sent.
        if self.target.form == Form::Origin
            && self.target.normal
            && !self.query_edited
            && (self.target.query.is_none() || self.target.query_clean)
        {
            out.extend_from_slice(self.received_target());
            return;
        }
        out.extend_from_slice(self.encoded_path());
        if let Some(query) = self.query() {
            out.push(b'?');
            target::encode_query(query, out);
        }
    }

    /// True if the client's Host line may be sent on as it stands.
    #[must_use]
    pub fn host_line_is_good(&self) -> bool {
        self.target.authority.is_none() && self.head.host.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::{PathRules, Request};
    use weir_expr::Value;
    use weir_wire::head::Limits;

    fn receive(request: &mut Request, target: &str) {
        request.buffer.clear();
        request.buffer.extend(format!("GET {target} HTTP/1.1\r\nHost: a.test\r\n\r\n").as_bytes());
        assert!(request.parse(&Limits::default()).unwrap().is_some());
        request.accept_head(PathRules::default()).unwrap();
    }

    #[test]
    fn a_request_uri_has_one_form() {
        let mut request = Request::new(1024);
        for (target, uri, sent, real) in [
            ("/a?b=%20", "/a?b=%20", "/a?b=%20", "/a?b=%20"),
            ("/a?", "/a", "/a", "/a?"),
            ("/x/../%61%20b%3F?c=%20", "/a b??c=%20", "/a%20b%3F?c=%20", "/x/../%61%20b%3F?c=%20"),
            ("//a?", "/a", "/a", "//a?"),
            ("http://a.test/a?b", "/a?b", "/a?b", "/a?b"),
            ("http://a.test?b", "/?b", "/?b", "/?b"),
            ("http://a.test?", "/", "/", "/"),
            ("http://a.test", "/", "/", "/"),
            ("*", "/", "/", "*"),
        ] {
            receive(&mut request, target);
            let mut out = Vec::new();
            request.write_request_uri(&mut out);
            let texts = [request.request_uri(), &out, request.real_request_uri()].map(String::from_utf8_lossy);
            assert_eq!(texts, [uri, sent, real], "{target}");
        }
    }

    #[test]
    fn arguments_are_decoded_anew_when_the_query_changes() {
        let mut request = Request::new(1024);
        receive(&mut request, "/?key=%61&b=c%20d&f");
        let text = |request: &Request, name: &str| {
            request.argument(name.as_bytes()).map(|value| match value {
                Value::Bytes(text) => String::from_utf8_lossy(text).into_owned(),
                other => format!("{other:?}"),
            })
        };
        assert_eq!(
            ["key", "b", "f", "g"].map(|name| text(&request, name)),
            [Some("a".into()), Some("c d".into()), Some("Boolean(true)".into()), None]
        );
        request.retain_arguments(|argument| !argument.starts_with(b"key"));
        assert_eq!(["key", "b"].map(|name| text(&request, name)), [None, Some("c d".into())]);
        assert_eq!(request.request_uri(), b"/?key=%61&b=c%20d&f", "as it was received");
        receive(&mut request, "/?b=%65");
        assert_eq!(text(&request, "b"), Some("e".into()));
        receive(&mut request, "/");
        assert_eq!(text(&request, "b"), None);
    }
}
