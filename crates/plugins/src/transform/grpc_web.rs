//! `grpc-web`: browsers that speak gRPC-Web with services that speak gRPC.

use base64::Engine;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_expr::{Value, Variable};
use weir_plugin::{
    BodyCx, CompileCx, Compiled, Define, Failure, Flow, Invalid, Origin, PerRequest, Phases, Plugin, RequestBodyCx,
    RequestCx, Response, ResponseCx, Side,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::BASE64;

/// The definition.
#[derive(Debug)]
pub(crate) struct GrpcWeb;

/// On a route or a service.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Request fields that a page of another origin may send, with commas between them: the value of
    /// `Access-Control-Allow-Headers` in answers to preflight requests.
    #[schemars(length(min = 1))]
    cors_allow_headers: String,
    /// Keeps the part of the path before the `*` of the route's pattern for the service, for patterns such as
    /// `/package.Service/*`. Without it, only the part behind is kept. The name is that of APISIX.
    strip_path: bool,
}

impl Default for Conf {
    fn default() -> Self {
        Self { cors_allow_headers: "content-type,x-grpc-web,x-user-agent".into(), strip_path: false }
    }
}

impl Define for GrpcWeb {
    const NAME: &'static str = "grpc-web";
    const PRIORITY: i32 = 505;
    const PHASES: Phases = Phases::ACCESS.and(Phases::REQUEST_BODY).and(Phases::RESPONSE).and(Phases::BODY);
    const DOC: &'static str = "\
Lets browsers call gRPC services: requests in gRPC-Web, over HTTP/1.1 or HTTP/2, become calls of gRPC, and answers go back \
in the form of the request. `Content-Type` is `application/grpc-web` or `application/grpc-web-text` (base64), each also \
with `+proto`. Messages go on as they come, in both directions, so that a stream of the service is a stream for the \
browser. The trailer section becomes the last frame of the body, with the flag `0x80`; where the service sends none, that \
frame holds `grpc-status:2`.

The path of the route ends with `*`, and the part that it stands for is the path of the call: with `/grpc/web/*`, \
`/grpc/web/package.Service/Method` calls `/package.Service/Method`. The upstream has the `scheme` `grpc` or `grpcs`.

OPTIONS is answered with 204 and the `Access-Control-*` fields of a preflight. Other methods than POST, other media types, \
and routes whose path does not end with `*` are answered with 400. `Access-Control-Allow-Origin` is `*`, unless the plugin \
`cors` has set it. A body that is not base64 ends the call with the status 13 (INTERNAL).";
    const EXAMPLE: &'static str = "\
cors_allow_headers: content-type,x-grpc-web,x-user-agent,authorization
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if !conf.cors_allow_headers.split(',').all(|name| FieldName::new(name.trim()).is_some()) {
            cx.say([Invalid::new("cors_allow_headers", "expected names of fields, separated by commas")]);
        }
        let path = if conf.strip_path { CallPath::Whole } else { CallPath::BehindPrefix };
        Some(Compiled::ready(Web::new(conf.cors_allow_headers, path)))
    }
}

/// The path of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallPath {
    /// The part that the `*` of the route's pattern stands for.
    BehindPrefix,
    /// The path of the request, of a route whose pattern ends with `*`.
    Whole,
    /// The one that the upstream receives anyway.
    Upstream,
}

/// An instance.
#[derive(Debug)]
pub(crate) struct Web {
    allow_headers: Vec<u8>,
    path: CallPath,
    content_type: FieldName,
    cors: CorsFields,
    /// State of a call: its text, unless it is binary.
    text: PerRequest<Option<Text>>,
}

/// Names of response fields.
#[derive(Debug)]
struct CorsFields {
    allow_origin: FieldName,
    allow_methods: FieldName,
    allow_headers: FieldName,
    expose_headers: FieldName,
}

impl CorsFields {
    fn new() -> Self {
        Self {
            allow_origin: FieldName::constant("Access-Control-Allow-Origin"),
            allow_methods: FieldName::constant("Access-Control-Allow-Methods"),
            allow_headers: FieldName::constant("Access-Control-Allow-Headers"),
            expose_headers: FieldName::constant("Access-Control-Expose-Headers"),
        }
    }
}

/// Form of the messages of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Binary,
    Base64,
}

/// Form of the messages by the media type; parameters do not matter.
fn form_of(content_type: &[u8]) -> Option<Form> {
    let media = content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let is = |names: [&str; 2]| names.iter().any(|name| media.eq_ignore_ascii_case(name.as_bytes()));
    match media {
        _ if is(["application/grpc-web", "application/grpc-web+proto"]) => Some(Form::Binary),
        _ if is(["application/grpc-web-text", "application/grpc-web-text+proto"]) => Some(Form::Base64),
        _ => None,
    }
}

impl Web {
    /// `allow_headers` are told in answers to preflight requests.
    pub(crate) fn new(allow_headers: String, path: CallPath) -> Self {
        Self {
            allow_headers: allow_headers.into_bytes(),
            path,
            content_type: FieldName::constant("Content-Type"),
            cors: CorsFields::new(),
            text: PerRequest::new(),
        }
    }

    /// The path of the call; `None` if the route has no path that ends with `*`.
    fn path<'a>(&self, cx: &'a RequestCx<'_>) -> Option<&'a [u8]> {
        let Some(Value::Bytes(pattern)) = cx.variable(&Variable::MatchedUri) else { return None };
        let prefix = pattern.strip_suffix(b"*")?;
        let path = cx.request().encoded_path();
        let rest = path.strip_prefix(prefix)?;
        Some(if self.path == CallPath::Whole { path } else { rest })
    }
}

impl Web {
    /// Sets the path of the call; false where there is none.
    fn set_path(&self, cx: &mut RequestCx<'_>) -> bool {
        let mut target = cx.take_scratch();
        let has_path = self.path(cx).map(|path| {
            target.extend_from_slice(if path.starts_with(b"/") { b"" } else { b"/" });
            target.extend_from_slice(path);
        });
        if has_path.is_some() && cx.request().upstream.target.is_empty() {
            cx.request_mut().upstream.target.extend_from_slice(&target);
        }
        cx.put_scratch(target);
        has_path.is_some()
    }
}

impl Plugin for Web {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        match cx.request().method() {
            Method::Options => return cx.reply(204).done(),
            Method::Post => {}
            _ => return cx.refuse(400, "gRPC-Web is POST or OPTIONS"),
        }
        let Some(form) = cx.request().field(&self.content_type).and_then(form_of) else {
            return cx.refuse(400, "the Content-Type is not one of gRPC-Web");
        };
        if self.path != CallPath::Upstream && !self.set_path(cx) {
            return cx.refuse(400, "the path of the route does not end with *");
        }
        cx.request_mut().set_field(&self.content_type, b"application/grpc");
        self.text.put(cx, (form == Form::Base64).then(Text::default));
        if form == Form::Base64 {
            cx.filter_body();
        }
        Flow::Continue
    }

    fn request_body(&self, cx: &mut RequestBodyCx<'_>, piece: &mut Vec<u8>, last: bool) -> Flow {
        let begins = cx.begins();
        let Some(Some(text)) = self.text.get_mut(cx) else { return Flow::Continue };
        if begins {
            text.rest.clear();
        }
        match text.decode(piece, last) {
            Ok(()) => Flow::Continue,
            Err(_) => Flow::Abort(Failure { status: 400, side: Side::Client, reason: "gRPC-Web body is not base64" }),
        }
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let cors = &self.cors;
        if cx.request().method() == Method::Options {
            cx.set_field(&cors.allow_methods, b"POST, OPTIONS");
            cx.set_field(&cors.allow_headers, &self.allow_headers);
        }
        if cx.response().field_str("Access-Control-Allow-Origin").is_none() {
            cx.set_field(&cors.allow_origin, b"*");
        }
        cx.set_field(&cors.expose_headers, b"grpc-status,grpc-message");
        if self.text.get(cx).is_none() {
            return Flow::Continue;
        }
        let mut kind = cx.take_scratch();
        let request = cx.request();
        let received = request.head.fields.received(request.buffer.bytes(), b"content-type");
        kind.extend_from_slice(received.unwrap_or_default());
        cx.set_field(&self.content_type, &kind);
        cx.put_scratch(kind);
        if cx.response().origin == Origin::Upstream {
            cx.filter_body(false);
        }
        Flow::Continue
    }

    fn body(&self, cx: &mut BodyCx<'_>, chunk: &mut Vec<u8>, last: bool) -> Flow {
        if self.text.get(cx).is_none() || cx.response().origin != Origin::Upstream {
            return Flow::Continue;
        }
        if last {
            push_trailers(cx.response(), chunk);
            cx.drop_trailers();
        }
        if let Some(Some(text)) = self.text.get_mut(cx) {
            text.encode(chunk);
        }
        Flow::Continue
    }
}

/// Appends the trailer section as a frame. An answer that has its status in the head needs none.
fn push_trailers(response: &Response, body: &mut Vec<u8>) {
    if response.trailer(b"grpc-status").is_none() && response.field_str("grpc-status").is_some() {
        return;
    }
    let begin = body.len();
    body.extend_from_slice(&[0x80, 0, 0, 0, 0]);
    let mut push = |name: &[u8], value: &[u8]| {
        body.extend(name.iter().map(u8::to_ascii_lowercase));
        body.push(b':');
        body.extend_from_slice(value);
        body.extend_from_slice(b"\r\n");
    };
    response.trailers().for_each(|(name, value)| push(name, value));
    if response.trailer(b"grpc-status").is_none() {
        push(b"grpc-status", b"2");
        push(b"grpc-message", b"upstream grpc status not received");
    }
    let len = (body.len() - begin - 5) as u32;
    if let Some(field) = body.get_mut(begin + 1..begin + 5) {
        field.copy_from_slice(&len.to_be_bytes());
    }
}

/// Base64 of a call: what has not been decoded yet, and room for what is made of a piece.
#[derive(Debug, Default)]
struct Text {
    rest: Vec<u8>,
    made: Vec<u8>,
}

impl Text {
    /// Replaces a piece by what it decodes to. Padding may stand within: several texts in base64 follow each other.
    fn decode(&mut self, piece: &mut Vec<u8>, last: bool) -> Result<(), base64::DecodeError> {
        self.rest.append(piece);
        let mut from = 0;
        loop {
            let rest = self.rest.get(from..).unwrap_or_default();
            let groups = if last { rest.len() } else { rest.len() - rest.len() % 4 };
            let groups = rest.get(..groups).unwrap_or_default();
            if groups.is_empty() {
                break;
            }
            let padded = groups.iter().position(|byte| *byte == b'=').map(|at| (at / 4 + 1) * 4);
            let end = padded.unwrap_or(groups.len()).min(groups.len());
            BASE64.decode_vec(groups.get(..end).unwrap_or_default(), piece)?;
            from += end;
        }
        self.rest.drain(..from);
        Ok(())
    }

    /// Replaces a piece by its text, with padding at its end, so that nothing is held back.
    fn encode(&mut self, piece: &mut Vec<u8>) {
        self.made.clear();
        let room = piece.len().div_ceil(3) * 4;
        self.made.resize(room, 0);
        // The room is that of the text.
        let len = BASE64.encode_slice(&*piece, &mut self.made).unwrap_or_default();
        self.made.truncate(len);
        std::mem::swap(piece, &mut self.made);
    }
}

#[cfg(test)]
mod tests {
    use super::{Form, Text, form_of};

    fn decoded(pieces: &[&str]) -> Option<Vec<u8>> {
        let mut text = Text::default();
        let mut all = Vec::new();
        for (at, piece) in pieces.iter().enumerate() {
            let mut piece = piece.as_bytes().to_vec();
            text.decode(&mut piece, at + 1 == pieces.len()).ok()?;
            all.extend_from_slice(&piece);
        }
        Some(all)
    }

    #[test]
    fn base64_is_decoded_wherever_it_is_cut() {
        // "hello" and "!" one after the other, each padded.
        let whole = "aGVsbG8=IQ==";
        for cut in 0..=whole.len() {
            let (head, tail) = whole.split_at(cut);
            assert_eq!(decoded(&[head, tail]).as_deref(), Some(&b"hello!"[..]), "{head} {tail}");
        }
        let single: Vec<_> = whole.split("").filter(|one| !one.is_empty()).collect();
        assert_eq!(decoded(&single).as_deref(), Some(&b"hello!"[..]));
        for (pieces, expected) in [
            (&["aGVsbG8"][..], Some(&b"hello"[..])),
            (&[""], Some(b"")),
            (&["a"], None),
            (&["=aGV"], None),
            (&["aG*s"], None),
            (&["aGVs", "\n"], None),
        ] {
            assert_eq!(decoded(pieces).as_deref(), expected, "{pieces:?}");
        }
    }

    #[test]
    fn pieces_are_encoded_one_by_one() {
        let mut text = Text::default();
        for (piece, expected) in [("hello", "aGVsbG8="), ("", ""), ("!", "IQ==")] {
            let mut piece = piece.as_bytes().to_vec();
            text.encode(&mut piece);
            assert_eq!(String::from_utf8(piece).unwrap(), expected);
        }
    }

    #[test]
    fn media_types_are_those_of_the_protocol() {
        for (text, expected) in [
            ("application/grpc-web", Some(Form::Binary)),
            ("Application/gRPC-Web+proto; charset=utf-8", Some(Form::Binary)),
            ("application/grpc-web-text", Some(Form::Base64)),
            ("application/grpc-web-text+proto", Some(Form::Base64)),
            ("application/grpc-web+json", None),
            ("application/grpc", None),
            ("", None),
        ] {
            assert_eq!(form_of(text.as_bytes()), expected, "{text}");
        }
    }
}
