//! `openfunction`: requests are answered by a function of OpenFunction.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Phases};
use weir_wire::name::FieldName;

use super::forwarded::{Call, Conf, Credentials};

/// The definition.
#[derive(Debug)]
pub(crate) struct Openfunction;

/// Credentials for OpenFunction.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Authorization {
    /// User and password as `USER:PASSWORD`, sent in `Authorization` (Basic) in the place of the client's.
    service_token: Option<String>,
}

impl Define for Openfunction {
    const NAME: &'static str = "openfunction";
    const PRIORITY: i32 = -1902;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Answers requests with a function of OpenFunction: the request is sent to `function_uri` with its method, query, fields and \
body, and the answer goes to the client. A function that does not answer in time is answered 503.";
    const EXAMPLE: &'static str = "\
function_uri: http://127.0.0.1:30585/default/function-sample
authorization:
  service_token: user:secret
";
    const ENCRYPTED: &'static [&'static str] = &["authorization.service_token"];

    type Conf = Conf<Authorization>;
    type ConsumerConf = ();

    fn compile(conf: Self::Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        conf.compile(Self::NAME, cx, |authorization, _| {
            let token = authorization.and_then(|own| own.service_token);
            let login = token.map(|token| format!("Basic {}", STANDARD.encode(token)));
            Ok(Login { login, name: FieldName::constant("Authorization") })
        })
    }
}

#[derive(Debug)]
struct Login {
    login: Option<String>,
    name: FieldName,
}

impl Credentials for Login {
    fn put(&self, call: &mut Call<'_, '_>) {
        call.set(&self.name, self.login.as_deref());
    }
}
