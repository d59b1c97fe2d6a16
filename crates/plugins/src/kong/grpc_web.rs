//! Kong's `grpc-web`.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{
    BodyCx, CompileCx, Compiled, Define, Flow, Invalid, Phases, Plugin, RequestBodyCx, RequestCx, ResponseCx,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use crate::transform::grpc_web::{self, CallPath, Web};

/// The definition.
#[derive(Debug)]
pub(crate) struct GrpcWeb;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// File with the description of services, for messages in JSON; they are not supported.
    proto: Option<String>,
    /// Looks for methods by the stripped path; without descriptions nothing is looked for.
    #[serde(rename = "pass_stripped_path")]
    _pass_stripped_path: Option<bool>,
    /// Value of `Access-Control-Allow-Origin`.
    allow_origin_header: String,
}

impl Default for Conf {
    fn default() -> Self {
        Self { proto: None, _pass_stripped_path: None, allow_origin_header: "*".into() }
    }
}

impl Define for GrpcWeb {
    const NAME: &'static str = "grpc-web";
    const PRIORITY: i32 = 3;
    const PHASES: Phases = grpc_web::GrpcWeb::PHASES;
    const DOC: &'static str = "Lets browsers that speak gRPC-Web call services that speak gRPC.";
    const EXAMPLE: &'static str = "{}\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        if conf.proto.is_some() {
            cx.warn(
                "proto",
                "it has no effect: messages in JSON are not supported, and other ones need no description",
            );
        }
        if !conf.allow_origin_header.bytes().all(weir_wire::is_field_byte) {
            cx.say([Invalid::new("allow_origin_header", "expected the value of a header")]);
        }
        Some(Compiled::ready(Browsers {
            web: Web::new("content-type,x-grpc-web,x-user-agent".to_owned(), CallPath::Upstream),
            allow_origin: FieldName::constant("Access-Control-Allow-Origin"),
            origin: conf.allow_origin_header.into_bytes(),
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Browsers {
    web: Web,
    allow_origin: FieldName,
    origin: Vec<u8>,
}

impl Plugin for Browsers {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if cx.request().method() == Method::Options {
            return cx.reply(200).body(b"OK").done();
        }
        self.web.access(cx)
    }

    fn request_body(&self, cx: &mut RequestBodyCx<'_>, piece: &mut Vec<u8>, last: bool) -> Flow {
        self.web.request_body(cx, piece, last)
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        cx.set_field(&self.allow_origin, &self.origin);
        self.web.response(cx)
    }

    fn body(&self, cx: &mut BodyCx<'_>, chunk: &mut Vec<u8>, last: bool) -> Flow {
        self.web.body(cx, chunk, last)
    }
}
