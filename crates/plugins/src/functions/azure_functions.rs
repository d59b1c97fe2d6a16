//! `azure-functions`: requests are answered by a function of Azure.

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node};
use weir_plugin::{CompileCx, Compiled, Define, Phases};
use weir_wire::name::FieldName;

use super::forwarded::{Call, Conf, Credentials, check};

/// The definition.
#[derive(Debug)]
pub(crate) struct AzureFunctions;

/// Credentials for Azure.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Authorization {
    /// Key of the function, sent in `x-functions-key`.
    apikey: Option<String>,
    /// Id of the client, sent in `x-functions-clientid`.
    clientid: Option<String>,
}

/// Credentials for all functions that have none of their own.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Metadata {
    /// Key, sent in `x-functions-key`.
    master_apikey: String,
    /// Id of the client, sent in `x-functions-clientid`.
    master_clientid: String,
}

impl Define for AzureFunctions {
    const NAME: &'static str = "azure-functions";
    const PRIORITY: i32 = -1900;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Answers requests with a function of Azure: the request is sent to `function_uri` with its method, query, fields and body, and \
the answer goes to the client. A function that does not answer in time is answered 503.

Credentials are those that the client sends in `x-functions-key` or `x-functions-clientid`, else those of `authorization`, else \
`master_apikey` and `master_clientid` of the plugin's `plugin_metadata`.";
    const EXAMPLE: &'static str = "\
function_uri: https://orders.azurewebsites.net/api/list
authorization:
  apikey: secret
";
    const ENCRYPTED: &'static [&'static str] = &["authorization.apikey"];

    type Conf = Conf<Authorization>;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        weir_config::schema::read::<Metadata>(metadata).map(drop)
    }

    fn compile(conf: Self::Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        conf.compile(Self::NAME, cx, |authorization, build| {
            let (key, client) = match authorization {
                Some(own) => (own.apikey, own.clientid),
                None => {
                    let master: Metadata = build.metadata()?;
                    (Some(master.master_apikey), Some(master.master_clientid))
                }
            };
            check("authorization.apikey", key.as_ref())?;
            check("authorization.clientid", client.as_ref())?;
            let names = ["x-functions-key", "x-functions-clientid"].map(FieldName::constant);
            Ok(Azure { key, client, names })
        })
    }
}

#[derive(Debug)]
struct Azure {
    key: Option<String>,
    client: Option<String>,
    names: [FieldName; 2],
}

impl Credentials for Azure {
    fn put(&self, call: &mut Call<'_, '_>) {
        let [key, client] = &self.names;
        if call.has(key) || call.has(client) {
            return;
        }
        call.set(key, self.key.as_deref());
        call.set(client, self.client.as_deref());
    }
}
