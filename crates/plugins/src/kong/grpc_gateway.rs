//! Kong's `grpc-gateway`: clients that speak HTTP and JSON with the services of a `.proto` file, by its `google.api.http`.

use std::path::Path;

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::Proto;
use weir_plugin::{
    BodyCx, CompileCx, Compiled, Define, Flow, Invalid, PerRequest, Phases, Plugin, RequestCx, ResponseCx,
};
use weir_wire::method::Method;

use crate::transform::grpc_transcode::{self, Transcoder};

/// The definition.
#[derive(Debug)]
pub(crate) struct GrpcGateway;

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Conf {
    /// Path of the `.proto` file with the services, read when the configuration is.
    proto: String,
}

/// Most bytes of a `.proto` file.
const MOST_BYTES: usize = 1 << 20;

impl Conf {
    fn methods(&self) -> Result<Box<[Transcoder]>, Invalid> {
        let fault = |text: String| Invalid::new("proto", text);
        if !self.proto.ends_with(".proto") {
            return Err(fault("expected the path of a .proto file".to_owned()));
        }
        let text = weir_config::file::read_beginning(Path::new(&self.proto), MOST_BYTES + 1);
        let text = text.map_err(|error| fault(format!("the file cannot be read: {error}")))?;
        if text.len() > MOST_BYTES {
            return Err(fault(format!("the file has more than {MOST_BYTES} bytes")));
        }
        let text = String::from_utf8(text).map_err(|_| fault("the file is not UTF-8".to_owned()))?;
        let pool = Proto::compile(&text).map_err(fault)?;
        let methods = Transcoder::all_bound(&pool).map_err(fault)?;
        match methods.is_empty() {
            true => Err(fault("no method in the file has the option google.api.http".to_owned())),
            false => Ok(methods.into()),
        }
    }
}

impl Define for GrpcGateway {
    const NAME: &'static str = "grpc-gateway";
    const PRIORITY: i32 = 998;
    const PHASES: Phases = grpc_transcode::GrpcTranscode::PHASES;
    const DOC: &'static str = "Lets clients that speak HTTP and JSON call the methods of gRPC services.";
    const EXAMPLE: &'static str = "proto: /etc/kong/hello.proto\n";

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let methods = cx.ok(conf.methods())?;
        Some(Compiled::ready(Gateway { methods, called: PerRequest::new() }))
    }
}

/// An instance.
#[derive(Debug)]
struct Gateway {
    methods: Box<[Transcoder]>,
    /// Number of the method that a request calls.
    called: PerRequest<usize>,
}

impl Plugin for Gateway {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if cx.request().method() == Method::Options {
            let answer = cx.reply(200).field("Access-Control-Allow-Methods", b"GET,POST,PATCH,DELETE");
            return answer.field("Access-Control-Allow-Headers", b"content-type").body(b"OK").done();
        }
        let found = self.methods.iter().position(|method| method.is_for(cx.request()));
        let Some((number, method)) = found.and_then(|number| Some((number, self.methods.get(number)?))) else {
            return cx.reply(400).body(b"no method of the service has this path").done();
        };
        self.called.put(cx, number);
        method.access(cx)
    }

    fn response(&self, cx: &mut ResponseCx<'_>) -> Flow {
        match self.called.get(cx).and_then(|number| self.methods.get(*number)) {
            Some(method) => method.response(cx),
            None => Flow::Continue,
        }
    }

    fn body(&self, cx: &mut BodyCx<'_>, chunk: &mut Vec<u8>, last: bool) -> Flow {
        match self.called.get(cx).and_then(|number| self.methods.get(*number)) {
            Some(method) => method.body(cx, chunk, last),
            None => Flow::Continue,
        }
    }
}
