//! `grpc-transcode`: clients that speak REST with services that speak gRPC.

mod http_rule;
mod json;
mod message;
mod status;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Tree};
use weir_config::Id;
use weir_config::prost_reflect::prost::Message;
use weir_config::prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, MethodDescriptor};
use weir_plugin::grpc;
use weir_plugin::{
    BodyCx, BuildCx, CompileCx, Compiled, Define, Failure, Flow, Invalid, Origin, PerRequest, Phases, Plugin, Request,
    RequestCx, ResponseCx,
};
use weir_plugin::{Held, NO_ROOM};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use http_rule::{Binding, Body};
use json::{Defaults, Enums, Form, Integers};

/// The definition.
#[derive(Debug)]
pub(crate) struct GrpcTranscode;

/// On a route or a service.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// The id of an item of `protos`, which describes the service.
    proto_id: Id,
    /// The service with its package, such as `helloworld.Greeter`.
    #[schemars(length(min = 1))]
    service: String,
    /// The method, such as `SayHello`. Only methods without streams can be called.
    #[schemars(length(min = 1))]
    method: String,
    /// Milliseconds that a call may take, which the service is told as well; 0: as many as a `grpc-timeout` of the request
    /// says, or any number.
    #[schemars(range(min = 0, max = 99_999_999))]
    #[serde(default)]
    deadline: u32,
    /// Form of messages as JSON, at most one option of each kind. Enumerations: `enum_as_name` or `enum_as_value`. Integers of
    /// 64 bits that do not fit into 32: `int64_as_number`, `int64_as_string` (`"#123"`) or `int64_as_hexstring` (`"#0x7b"`).
    /// Fields that are not in a message: `auto_default_values` (their defaults, in proto3), `use_default_values` (in proto2
    /// as well), `no_default_values` or `use_default_metatable` (left out, both). `disable_hooks` is the default; `enable_hooks`
    /// has no effect, for there are no hooks.
    #[schemars(length(min = 1))]
    #[serde(default = "default_options")]
    pb_option: Vec<PbOption>,
    /// A call that fails is answered with its status as JSON, and the details that the service gives
    /// (`grpc-status-details-bin`). Else the answer has no body.
    #[serde(default)]
    show_status_in_body: bool,
    /// The type of details, such as `helloworld.ErrorDetail`, which is described in the same proto: they are shown as JSON.
    /// Others, and all without it, are shown as `type_url` and `value` in base64.
    #[serde(default)]
    #[schemars(length(min = 1))]
    status_detail_type: Option<String>,
}

/// Form of values as JSON, and their defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
enum PbOption {
    EnumAsName,
    EnumAsValue,
    Int64AsNumber,
    Int64AsString,
    Int64AsHexstring,
    AutoDefaultValues,
    NoDefaultValues,
    UseDefaultValues,
    UseDefaultMetatable,
    EnableHooks,
    DisableHooks,
}

fn default_options() -> Vec<PbOption> {
    use PbOption::{AutoDefaultValues, DisableHooks, EnumAsName, Int64AsNumber};
    vec![EnumAsName, Int64AsNumber, AutoDefaultValues, DisableHooks]
}

impl PbOption {
    /// Kind of the option, of which there is at most one.
    fn subject(self) -> &'static str {
        match self {
            Self::EnumAsName | Self::EnumAsValue => "enumerations",
            Self::Int64AsNumber | Self::Int64AsString | Self::Int64AsHexstring => "integers",
            Self::AutoDefaultValues | Self::NoDefaultValues | Self::UseDefaultValues | Self::UseDefaultMetatable => {
                "default values"
            }
            Self::EnableHooks | Self::DisableHooks => "hooks",
        }
    }
}

impl Define for GrpcTranscode {
    const NAME: &'static str = "grpc-transcode";
    const PRIORITY: i32 = 506;
    const PHASES: Phases = Phases::ACCESS.and(Phases::RESPONSE).and(Phases::BODY);
    const DOC: &'static str = "\
Lets clients that speak HTTP and JSON call a method of a gRPC service. The request becomes a call, whatever its path is, and \
the answer to it becomes JSON. The upstream has the `scheme` `grpc` or `grpcs`, and the `protos` have the description of \
the service.

**Requests.** Of POST, PUT and PATCH the body has the fields of the message: JSON (`application/json`, or a type that ends \
with `+json`) or a form (`application/x-www-form-urlencoded`); an empty body is an empty message, and other media types are \
refused with 415. Of other methods the arguments of the query are the fields. Fields are found by their names in the \
description, or by those names in `lowerCamelCase`. What has no field is left out, as is `null`; a value that does not fit \
its field is refused with 400. Integers may be texts as well, `bytes` are base64, and values of enumerations are names or \
numbers. In arguments `a.b` is the field `b` of the message in `a`, and a repeated argument is a list.

**`google.api.http`.** Where the method has this option, and the request is one of those that it names by method and path, \
its rules hold instead, which goes beyond APISIX: parts of the path are fields, `body` says which field the body is (`*`: \
the message; none: there is no body), arguments of the query are the other fields, and `response_body` is the field of the \
answer that is sent. The path is the one that the client has sent.

**Answers.** The message of the answer is sent as JSON, with the names of the description. Timestamps and other messages of \
`google.protobuf` are written like any other message. A status other than 0 becomes one of HTTP: 1: 499; 3, 9 and 11: 400; \
4: 504; 5: 404; 6 and 10: 409; 7: 403; 8: 429; 12: 501; 14: 503; 16: 401; others: 500. `grpc-status`, `grpc-message` and \
`grpc-status-details-bin` are fields of the head then. An answer that is no message of the method's type is answered with 502, \
also one of more than 16 MiB of JSON. The body of the request and of the answer may have `limits.buffered_body` each.";
    const EXAMPLE: &'static str = "\
proto_id: greeter
service: helloworld.Greeter
method: SayHello
";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        for (at, option) in conf.pb_option.iter().enumerate() {
            let before = conf.pb_option.get(..at).unwrap_or_default();
            if before.iter().any(|other| other.subject() == option.subject()) {
                let text = format!("there is an option for {} already", option.subject());
                cx.say([Invalid::new(format!("pb_option[{at}]"), text)]);
            }
            if *option == PbOption::EnableHooks {
                cx.warn(format!("pb_option[{at}]"), "has no effect: there are no hooks");
            }
        }
        if conf.status_detail_type.is_some() && !conf.show_status_in_body {
            cx.warn("status_detail_type", "has no effect without show_status_in_body");
        }
        Some(Compiled::build(move |cx| Transcoder::new(&conf, cx)))
    }
}

/// An instance. Reading a message and writing one allocate, which is little beside the call.
#[derive(Debug)]
pub(crate) struct Transcoder {
    input: MessageDescriptor,
    output: MessageDescriptor,
    /// Target of the call.
    target: Box<[u8]>,
    /// Value of `grpc-timeout`; empty: none is set.
    timeout: Box<[u8]>,
    bindings: Box<[Binding]>,
    form: Form,
    shows_status: bool,
    detail: Option<MessageDescriptor>,
    names: Names,
    /// Set for a request that was made a call: the binding that it is one by.
    call: PerRequest<Option<usize>>,
}

/// Names of fields.
#[derive(Debug)]
struct Names {
    content_type: FieldName,
    accept_encoding: FieldName,
    encoding: FieldName,
    timeout: FieldName,
    status: FieldName,
    message: FieldName,
    details: FieldName,
}

impl Names {
    fn new() -> Self {
        Self {
            content_type: FieldName::constant("Content-Type"),
            accept_encoding: FieldName::constant("grpc-accept-encoding"),
            encoding: FieldName::constant("grpc-encoding"),
            timeout: FieldName::constant("grpc-timeout"),
            status: FieldName::constant("grpc-status"),
            message: FieldName::constant("grpc-message"),
            details: FieldName::constant("grpc-status-details-bin"),
        }
    }
}

impl Transcoder {
    fn new(conf: &Conf, cx: &BuildCx<'_>) -> Result<Self, Invalid> {
        let id = conf.proto_id.as_str();
        let pool = cx.proto("proto_id", id)?;
        let service = pool
            .get_service_by_name(&conf.service)
            .ok_or_else(|| Invalid::new("service", format!("there is no such service in the proto '{id}'")))?;
        let fault = |text: String| Invalid::new("method", text);
        let method = service
            .methods()
            .find(|method| method.name() == conf.method)
            .ok_or_else(|| fault(format!("{} has no such method", conf.service)))?;
        if method.is_client_streaming() || method.is_server_streaming() {
            return Err(fault(format!("{} takes or gives a stream of messages, which is not supported", conf.method)));
        }
        let bindings = http_rule::bindings(&method).map_err(|why| fault(unusable(&method, &why)))?;
        let detail = conf.status_detail_type.as_deref().map(|name| {
            pool.get_message_by_name(name).ok_or_else(|| {
                Invalid::new("status_detail_type", format!("there is no such message in the proto '{id}'"))
            })
        });
        let mut form = Form::default();
        for option in &conf.pb_option {
            match option {
                PbOption::EnumAsName => form.enums = Enums::Names,
                PbOption::EnumAsValue => form.enums = Enums::Numbers,
                PbOption::Int64AsNumber => form.integers = Integers::Numbers,
                PbOption::Int64AsString => form.integers = Integers::Texts,
                PbOption::Int64AsHexstring => form.integers = Integers::Hexadecimal,
                PbOption::AutoDefaultValues => form.defaults = Defaults::Proto3,
                PbOption::UseDefaultValues => form.defaults = Defaults::All,
                PbOption::NoDefaultValues | PbOption::UseDefaultMetatable => form.defaults = Defaults::None,
                PbOption::EnableHooks | PbOption::DisableHooks => {}
            }
        }
        let timeout = if conf.deadline == 0 { String::new() } else { format!("{}m", conf.deadline) };
        Ok(Self {
            timeout: timeout.into_bytes().into(),
            form,
            shows_status: conf.show_status_in_body,
            detail: detail.transpose()?,
            ..Self::of(&method, bindings)
        })
    }

    /// A transcoder for a method, with the usual form of JSON.
    fn of(method: &MethodDescriptor, bindings: Vec<Binding>) -> Self {
        Self {
            input: method.input(),
            output: method.output(),
            target: format!("/{}/{}", method.parent_service().full_name(), method.name()).into_bytes().into(),
            timeout: Box::default(),
            bindings: bindings.into(),
            form: Form::default(),
            shows_status: false,
            detail: None,
            names: Names::new(),
            call: PerRequest::new(),
        }
    }

    /// Transcoders for all methods without streams to which `google.api.http` gives paths.
    ///
    /// # Errors
    /// Reason why an option cannot be used.
    pub(crate) fn all_bound(pool: &DescriptorPool) -> Result<Vec<Self>, String> {
        let methods: Vec<MethodDescriptor> =
            pool.services().flat_map(|service| service.methods().collect::<Vec<_>>()).collect();
        let mut all = Vec::new();
        for method in methods {
            let bindings = http_rule::bindings(&method).map_err(|why| unusable(&method, &why))?;
            if !bindings.is_empty() && !method.is_client_streaming() && !method.is_server_streaming() {
                all.push(Self::of(&method, bindings));
            }
        }
        Ok(all)
    }

    /// True for a request that stands for a call of the method by its path.
    pub(crate) fn is_for(&self, request: &Request) -> bool {
        self.bindings.iter().any(|one| one.is_for(request.method_bytes(), request.encoded_path()))
    }

    /// The message of a request, behind the five bytes that begin one in gRPC.
    fn frame(&self, cx: &RequestCx<'_>, binding: Option<&Binding>) -> Result<Vec<u8>, (u16, String)> {
        let request = cx.request();
        let mut tree = Tree::Object(Map::new());
        let takes_arguments = match binding {
            Some(binding) => binding.body != Body::Message,
            None => !has_body(request.method()),
        };
        if takes_arguments {
            message::put_arguments(&mut tree, request.query().unwrap_or_default());
        }
        match binding.map(|binding| &binding.body) {
            None if takes_arguments => {}
            Some(Body::None) => {}
            None | Some(Body::Message) => tree = self.body(cx, Tree::Object(Map::new()))?,
            Some(Body::Field(name)) => message::put(&mut tree, name, self.body(cx, Tree::Null)?),
        }
        if let Some(binding) = binding {
            if !tree.is_object() {
                return Err((400, "the body is not an object".to_owned()));
            }
            binding.put_path(request.encoded_path(), &mut tree);
        }
        let message = message::read(&self.input, &tree).map_err(|misfit| (400, misfit.to_string()))?;
        let framed = grpc::frame(|out| {
            // The room grows as it is needed.
            let _ = message.encode(out);
        });
        framed.ok_or_else(|| (413, "the message is too long".to_owned()))
    }

    /// The body of a request as a tree.
    fn body(&self, cx: &RequestCx<'_>, empty: Tree) -> Result<Tree, (u16, String)> {
        let body = cx.body().unwrap_or_default();
        if body.is_empty() {
            return Ok(empty);
        }
        let kind = cx.request().field(&self.names.content_type).unwrap_or_default();
        match Media::of(kind) {
            Some(Media::Json) => {
                serde_json::from_slice(body).map_err(|error| (400, format!("the body is not JSON: {error}")))
            }
            Some(Media::Form) => {
                let mut tree = Tree::Object(Map::new());
                message::put_arguments(&mut tree, body);
                Ok(tree)
            }
            None => Err((415, "the Content-Type is neither JSON nor a form".to_owned())),
        }
    }

    /// Takes an answer for JSON; `chunk` is the whole body.
    fn answer(&self, cx: &mut BodyCx<'_>, binding: Option<&Binding>, chunk: &mut Vec<u8>) -> Result<(), Failure> {
        let code = status::code(cx.response()).ok_or(NO_STATUS)?;
        if code != 0 {
            return self.error(cx, code, chunk);
        }
        // The request does not allow compressed messages.
        let content = grpc::only_message(chunk).map_err(|_| NO_MESSAGE)?;
        let message = DynamicMessage::decode(self.output.clone(), content).map_err(|_| NO_MESSAGE)?;
        let mut out = Vec::new();
        let written = match binding.and_then(|binding| binding.response_body.as_deref()) {
            Some(name) => json::write_field(&message, name, self.form, MOST_JSON, &mut out),
            None => json::write(&message, self.form, MOST_JSON, &mut out),
        };
        written.map_err(|_| TOO_LONG)?;
        *chunk = out;
        Ok(())
    }

    /// Takes the status of a call that has failed for an answer.
    fn error(&self, cx: &mut BodyCx<'_>, code: u32, chunk: &mut Vec<u8>) -> Result<(), Failure> {
        let mut out = Vec::new();
        if self.shows_status {
            let (form, detail) = (self.form, self.detail.as_ref());
            status::write(cx.response(), code, detail, form, MOST_JSON, &mut out).map_err(|_| TOO_LONG)?;
        }
        *chunk = out;
        for name in [&self.names.status, &self.names.message, &self.names.details] {
            let value = std::str::from_utf8(name.text()).ok().and_then(|name| cx.response().trailer(name.as_bytes()));
            if let Some(value) = value.map(<[u8]>::to_vec) {
                cx.set_field(name, &value);
            }
        }
        cx.drop_trailers();
        cx.set_status(status::http_status(code));
        Ok(())
    }
}

fn unusable(method: &MethodDescriptor, why: &str) -> String {
    format!("the option google.api.http of {} cannot be used: {why}", method.name())
}

/// Most bytes of JSON that a message becomes.
const MOST_JSON: usize = 16 << 20;

/// Bytes that a byte of a message takes at most while it is a tree: a list of numbers with a digit each, doubled as it grows.
const GROWTH: usize = 80;

const NO_STATUS: Failure = Failure::upstream(502, "upstream grpc status not received");
const NO_MESSAGE: Failure = Failure::upstream(502, "upstream grpc message cannot be read");
const TOO_LONG: Failure = Failure::upstream(502, "upstream grpc message too long as JSON");

/// Takes memory for trees of messages of this length; `None`: there is none.
fn room(len: usize) -> Option<Held> {
    let mut held = Held::default();
    (len <= 1 << 10 || held.grow_to(len.saturating_mul(GROWTH))).then_some(held)
}

/// True for requests whose body has the fields of the message.
fn has_body(method: Method) -> bool {
    matches!(method, Method::Post | Method::Put | Method::Patch)
}

/// Forms of a body.
#[derive(Debug, PartialEq, Eq)]
enum Media {
    Json,
    Form,
}

impl Media {
    /// The form by the media type; parameters do not matter.
    fn of(content_type: &[u8]) -> Option<Self> {
        let media =
            content_type.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii().to_ascii_lowercase();
        match media.as_slice() {
            b"application/json" => Some(Self::Json),
            b"application/x-www-form-urlencoded" => Some(Self::Form),
            other => other.ends_with(b"+json").then_some(Self::Json),
        }
    }
}

impl Plugin for Transcoder {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        let request = cx.request();
        let at = self.bindings.iter().position(|one| one.is_for(request.method_bytes(), request.encoded_path()));
        let binding = at.and_then(|at| self.bindings.get(at));
        let reads_body = match binding {
            Some(binding) => binding.body != Body::None,
            None => has_body(request.method()),
        };
        let body = match cx.body() {
            None if reads_body => return Flow::AwaitBody,
            body => body.unwrap_or_default().len(),
        };
        let Some(held) = room(body + cx.request().query().unwrap_or_default().len()) else {
            return Flow::Abort(NO_ROOM);
        };
        let frame = match self.frame(cx, binding) {
            Ok(frame) => frame,
            Err((status, why)) => return cx.refuse(status, &why),
        };
        drop(held);
        cx.replace_body(&frame);
        let request = cx.request_mut();
        request.upstream.method = Some(Method::Post);
        request.upstream.target.clear();
        request.upstream.target.extend_from_slice(&self.target);
        request.set_field(&self.names.content_type, b"application/grpc");
        request.remove_field(&self.names.encoding);
        request.remove_field(&self.names.accept_encoding);
        if !self.timeout.is_empty() {
            request.set_field(&self.names.timeout, &self.timeout);
        }
        self.call.put(cx, at);
        Flow::Continue
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        let response = cx.response();
        if response.origin != Origin::Upstream || self.call.get(cx).is_none() {
            return Flow::Continue;
        }
        // Whatever another plugin has made of it.
        let received = response.head.fields.received(response.buffer.bytes(), b"content-type");
        if !received.is_some_and(|kind| kind.starts_with(b"application/grpc")) {
            return if cx.status() == 200 { Flow::Abort(NO_MESSAGE) } else { Flow::Continue };
        }
        // An answer without a message has its status in the head.
        if let Some(code) = status::code(cx.response()).filter(|code| *code != 0) {
            cx.set_status(status::http_status(code));
        }
        cx.set_field(&self.names.content_type, b"application/json");
        cx.filter_body(true);
        Flow::Continue
    }

    fn body(&self, cx: &mut BodyCx<'_>, chunk: &mut Vec<u8>, _last: bool) -> Flow {
        if cx.response().origin != Origin::Upstream {
            return Flow::Continue;
        }
        // The whole of it.
        let Some(at) = self.call.take(cx) else { return Flow::Continue };
        let Some(_held) = room(chunk.len()) else { return Flow::Abort(NO_ROOM) };
        match self.answer(cx, at.and_then(|at| self.bindings.get(at)), chunk) {
            Ok(()) => Flow::Continue,
            Err(failure) => Flow::Abort(failure),
        }
    }
}
