//! `aws-lambda`: requests are answered by a function of Amazon's Lambda, behind its API Gateway or a function URL.

use schemars::JsonSchema;
use serde::Deserialize;
use weir_plugin::{CompileCx, Compiled, Define, Phases};
use weir_wire::name::FieldName;

use super::forwarded::{Call, Conf, Credentials, check};
use super::signature::{Signed, Signer, time_of};

/// The definition.
#[derive(Debug)]
pub(crate) struct AwsLambda;

/// Credentials for Amazon. With an `apikey` calls are not signed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Authorization {
    /// Key of the API Gateway, sent in `x-api-key` unless the client sends one.
    apikey: Option<String>,
    /// Keys with which calls are signed (Signature Version 4), unless the client sends `Authorization`.
    iam: Option<Iam>,
}

/// Keys of an identity.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Iam {
    /// Id of the access key.
    accesskey: String,
    /// The access key.
    secretkey: String,
    /// Region of the function.
    #[serde(default = "region")]
    aws_region: String,
    /// Service that receives the call: `execute-api` for an API Gateway, `lambda` for a function URL.
    #[serde(default = "service")]
    service: String,
}

fn region() -> String {
    "us-east-1".into()
}

fn service() -> String {
    "execute-api".into()
}

impl Define for AwsLambda {
    const NAME: &'static str = "aws-lambda";
    const PRIORITY: i32 = -1899;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Answers requests with a function of Amazon's Lambda: the request is sent to `function_uri` with its method, query, fields and \
body, and the answer goes to the client. A function that does not answer in time is answered 503.

A signature covers `Host`, `Content-Type` and the fields `X-Amz-…`, so that proxies on the way may add other fields.";
    const EXAMPLE: &'static str = "\
function_uri: https://abc123.execute-api.us-east-1.amazonaws.com/prod
authorization:
  iam:
    accesskey: AKIDEXAMPLE
    secretkey: secret
";
    const ENCRYPTED: &'static [&'static str] =
        &["authorization.apikey", "authorization.iam.accesskey", "authorization.iam.secretkey"];

    type Conf = Conf<Authorization>;
    type ConsumerConf = ();

    fn compile(conf: Self::Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        conf.compile(Self::NAME, cx, |authorization, _| {
            let apikey = authorization.as_ref().and_then(|own| own.apikey.as_ref());
            check("authorization.apikey", apikey)?;
            let apikey = apikey.cloned();
            let iam = authorization.and_then(|own| own.iam);
            check("authorization.iam.accesskey", iam.as_ref().map(|iam| &iam.accesskey))?;
            let signer = iam.map(|iam| Signer {
                key: iam.accesskey,
                secret: iam.secretkey,
                region: iam.aws_region,
                service: iam.service,
            });
            let names = ["x-api-key", "Authorization", "X-Amz-Date"].map(FieldName::constant);
            Ok(Amazon { apikey, signer, names })
        })
    }
}

#[derive(Debug)]
struct Amazon {
    apikey: Option<String>,
    signer: Option<Signer>,
    names: [FieldName; 3],
}

impl Credentials for Amazon {
    fn put(&self, call: &mut Call<'_, '_>) {
        let [key, authorization, date] = &self.names;
        if !call.has(key) && self.apikey.is_some() {
            call.set(key, self.apikey.as_deref());
            return;
        }
        let Some(signer) = self.signer.as_ref().filter(|_| !call.has(authorization)) else { return };
        let time = time_of(call.cx.unix_ms() / 1000);
        call.set(date, Some(&time));
        let request = call.cx.request();
        // The client's own fields of this kind go along, and have to be signed as well.
        let mut fields: Vec<(String, String)> = request
            .head
            .fields
            .iter(request.buffer.bytes())
            .map(|(name, value)| (String::from_utf8_lossy(name).to_ascii_lowercase(), value))
            .filter(|(name, _)| name == "content-type" || (name.starts_with("x-amz-") && name != "x-amz-date"))
            .map(|(name, value)| (name, String::from_utf8_lossy(value).into_owned()))
            .collect();
        fields.push(("host".to_owned(), call.host.to_owned()));
        fields.push(("x-amz-date".to_owned(), time.clone()));
        fields.sort_by(|a, b| a.0.cmp(&b.0));
        // A field that comes several times is signed as one.
        fields.dedup_by(|later, first| {
            let is_same = later.0 == first.0;
            if is_same {
                first.1 = format!("{},{}", first.1.trim(), later.1.trim());
            }
            is_same
        });
        let fields: Vec<(&str, &str)> = fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let signed = Signed {
            method: request.method().as_str(),
            path: call.path,
            query: call.query,
            fields: &fields,
            body: call.cx.body().unwrap_or_default(),
            time: &time,
        };
        let value = signer.authorization(&signed);
        call.set(authorization, Some(&value));
    }
}
