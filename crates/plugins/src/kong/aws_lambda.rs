//! Kong's `aws-lambda`: requests are answered by a function of Amazon's Lambda.

mod event;

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_plugin::{
    CalloutError, CalloutResponse, CompileCx, Compiled, Define, Flow, Invalid, Io, LocalFuture, Phases, Plugin,
    RequestCx, Service, ServiceOptions,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use crate::functions::called::answer;
use crate::functions::signature::{self, Signed, Signer};
use event::Forwarded;

/// The definition.
#[derive(Debug)]
pub(crate) struct AwsLambda;

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
enum InvocationType {
    RequestResponse,
    Event,
    DryRun,
}

/// The log that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
enum LogType {
    Tail,
    None,
}

/// Kong's configuration.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// Milliseconds for the function's answer.
    #[schemars(range(min = 1, max = 86_400_000))]
    timeout: u64,
    /// Milliseconds for which an unused connection is kept.
    #[schemars(range(min = 1, max = 86_400_000))]
    keepalive: u64,
    /// Id of the access key.
    aws_key: Option<String>,
    /// The access key.
    aws_secret: Option<String>,
    /// Region of the function.
    aws_region: Option<String>,
    /// Role that is taken on; not supported.
    aws_assume_role_arn: Option<String>,
    /// Name of the session of such a role.
    #[serde(rename = "aws_role_session_name")]
    _aws_role_session_name: String,
    /// Service that gives such a role.
    #[serde(rename = "aws_sts_endpoint_url")]
    _aws_sts_endpoint_url: Option<String>,
    /// Version of the service that gives roles to instances; not supported.
    #[serde(rename = "aws_imds_protocol_version")]
    _aws_imds_protocol_version: String,
    /// Name or ARN of the function.
    function_name: String,
    /// Version or alias of the function.
    qualifier: Option<String>,
    /// The kind of the call.
    invocation_type: InvocationType,
    /// The log that is asked for.
    log_type: LogType,
    /// Host of the service, in place of that of the region.
    host: Option<String>,
    /// Port of the service.
    #[schemars(range(min = 1))]
    port: u16,
    /// Asks by HTTP.
    disable_https: bool,
    /// Status of answers of functions that have failed.
    #[schemars(range(min = 100, max = 999))]
    unhandled_status: Option<u16>,
    /// Tells the function the method.
    forward_request_method: bool,
    /// Tells the function path and query.
    forward_request_uri: bool,
    /// Tells the function the headers.
    forward_request_headers: bool,
    /// Tells the function the body.
    forward_request_body: bool,
    /// The answer of the function says status, headers and body.
    is_proxy_integration: bool,
    /// Calls the function as Amazon's API Gateway does; not supported.
    awsgateway_compatible: bool,
    /// Version of such calls.
    #[serde(rename = "awsgateway_compatible_payload_version")]
    _awsgateway_compatible_payload_version: Option<String>,
    /// Proxy to the service; not supported.
    proxy_url: Option<String>,
    /// Leaves bodies out that nginx has written to a file; none is.
    #[serde(rename = "skip_large_bodies")]
    _skip_large_bodies: bool,
    /// Sends bodies of other media types in base64.
    base64_encode_body: bool,
    /// Treatment of empty lists in answers; they stay lists.
    #[serde(rename = "empty_arrays_mode")]
    _empty_arrays_mode: String,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            timeout: 60_000,
            keepalive: 60_000,
            aws_key: None,
            aws_secret: None,
            aws_region: None,
            aws_assume_role_arn: None,
            _aws_role_session_name: "kong".into(),
            _aws_sts_endpoint_url: None,
            _aws_imds_protocol_version: "v1".into(),
            function_name: String::new(),
            qualifier: None,
            invocation_type: InvocationType::RequestResponse,
            log_type: LogType::Tail,
            host: None,
            port: 443,
            disable_https: false,
            unhandled_status: None,
            forward_request_method: false,
            forward_request_uri: false,
            forward_request_headers: false,
            forward_request_body: false,
            is_proxy_integration: false,
            awsgateway_compatible: false,
            _awsgateway_compatible_payload_version: None,
            proxy_url: None,
            _skip_large_bodies: true,
            base64_encode_body: true,
            _empty_arrays_mode: "legacy".into(),
        }
    }
}

impl Conf {
    fn faults(&self) -> Vec<Invalid> {
        let keys =
            [&self.aws_key, &self.aws_secret].iter().all(|key| key.as_deref().is_some_and(|key| !key.is_empty()));
        [
            (self.function_name.is_empty(), "function_name", "required field missing"),
            (!keys, "aws_key", "aws_key and aws_secret are needed: roles of instances are not supported"),
            (self.aws_assume_role_arn.is_some(), "aws_assume_role_arn", "not supported: give keys of the role"),
            (self.aws_region.is_none() && self.host.is_none(), "aws_region", "one of aws_region and host is needed"),
            (self.awsgateway_compatible, "awsgateway_compatible", "not supported: use the forward_request_… fields"),
            (self.proxy_url.is_some(), "proxy_url", "proxies are not supported: let the gateway reach the service"),
        ]
        .into_iter()
        .filter(|(is_wrong, ..)| *is_wrong)
        .map(|(_, field, text)| Invalid::new(field, text))
        .collect()
    }

    /// Region of the signature.
    fn region(&self) -> String {
        self.aws_region.clone().unwrap_or_else(|| "us-east-1".into())
    }

    fn uri(&self) -> String {
        let host = self.host.clone().unwrap_or_else(|| format!("lambda.{}.amazonaws.com", self.region()));
        let scheme = if self.disable_https { "http" } else { "https" };
        format!("{scheme}://{host}:{}", self.port)
    }
}

impl Define for AwsLambda {
    const NAME: &'static str = "aws-lambda";
    const PRIORITY: i32 = 750;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "Answers requests with a function of Amazon's Lambda.";
    const EXAMPLE: &'static str = "{aws_key: AKIDEXAMPLE, aws_secret: secret, aws_region: us-east-1, function_name: orders, is_proxy_integration: true}\n";
    const ENCRYPTED: &'static [&'static str] = &["aws_key", "aws_secret"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        cx.say(conf.faults());
        let timeout = Duration::from_millis(conf.timeout);
        let options =
            ServiceOptions { idle: Duration::from_millis(conf.keepalive), timeout, ..ServiceOptions::default() };
        let uri = conf.uri();
        let service = cx.ok(Service::parse("host", &uri, options))?;
        let authority = uri.split_once("://").map_or("", |(_, authority)| authority).to_owned();
        let signer = Signer {
            region: conf.region(),
            key: conf.aws_key.unwrap_or_default(),
            secret: conf.aws_secret.unwrap_or_default(),
            service: "lambda".into(),
        };
        let query = conf.qualifier.map(|qualifier| format!("Qualifier={}", signature::encoded(&qualifier)));
        let name = FieldName::constant;
        Some(Compiled::build(move |build| {
            Ok(Function {
                service: service.build(build)?,
                signer,
                authority,
                path: format!("/2015-03-31/functions/{}/invocations", signature::encoded(&conf.function_name)),
                query: query.unwrap_or_default(),
                invocation: match conf.invocation_type {
                    InvocationType::RequestResponse => "RequestResponse",
                    InvocationType::Event => "Event",
                    InvocationType::DryRun => "DryRun",
                },
                log: if conf.log_type == LogType::Tail { "Tail" } else { "None" },
                forwarded: Forwarded {
                    method: conf.forward_request_method,
                    uri: conf.forward_request_uri,
                    headers: conf.forward_request_headers,
                    body: conf.forward_request_body,
                    encodes: conf.base64_encode_body,
                },
                unhandled: conf.unhandled_status,
                is_proxy: conf.is_proxy_integration,
                fields: ["Authorization", "Content-Type", "X-Amz-Date", "X-Amz-Invocation-Type", "X-Amz-Log-Type"]
                    .map(name),
                failure: name("X-Amz-Function-Error"),
                timeout,
            })
        }))
    }
}

/// An instance.
#[derive(Debug)]
struct Function {
    service: Service,
    signer: Signer,
    authority: String,
    path: String,
    query: String,
    invocation: &'static str,
    log: &'static str,
    forwarded: Forwarded,
    unhandled: Option<u16>,
    is_proxy: bool,
    /// Names of the fields of a call.
    fields: [FieldName; 5],
    failure: FieldName,
    timeout: Duration,
}

impl Plugin for Function {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if cx.body().is_none() { Flow::AwaitBody } else { Flow::Suspend }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let event = self.forwarded.event(cx).to_string();
            let time = signature::time_of(cx.unix_ms() / 1000);
            let kind = "application/x-amz-json-1.1";
            let signed = Signed {
                method: "POST",
                path: &self.path,
                query: &self.query,
                fields: &[
                    ("content-type", kind),
                    ("host", &*self.authority),
                    ("x-amz-date", &*time),
                    ("x-amz-invocation-type", self.invocation),
                    ("x-amz-log-type", self.log),
                ],
                body: event.as_bytes(),
                time: &time,
            };
            let authorization = self.signer.authorization(&signed);
            let mark = if self.query.is_empty() { "" } else { "?" };
            let target = format!("{}{mark}{}", self.path, self.query);
            let mut callout = self.service.callout_to(Method::Post, target.as_bytes());
            callout.set_timeout(self.timeout);
            for (name, value) in self.fields.iter().zip([&*authorization, kind, &*time, self.invocation, self.log]) {
                callout.set_field(name, value.as_bytes());
            }
            callout.set_body(event.as_bytes());
            match io.callout(callout).await {
                Ok(response) if self.is_proxy => self.answer_proxied(cx, &response),
                Ok(response) => self.answer(cx, &response),
                Err(CalloutError::Busy) => cx.fail(503, "aws-lambda: too many callouts under way"),
                Err(_) => super::body::error(cx, 500, "An unexpected error occurred", &[]),
            }
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // A callout ends before, by its own timeout.
        Some(self.timeout + Duration::from_secs(5))
    }
}

impl Function {
    fn answer(&self, cx: &mut RequestCx<'_>, response: &CalloutResponse) -> Flow {
        let has_failed = response.field(&self.failure) == Some(b"Unhandled");
        let status = self.unhandled.filter(|_| has_failed).unwrap_or_else(|| response.status());
        answer(cx, status, response.fields(), response.body())
    }

    /// Answers as the function says.
    fn answer_proxied(&self, cx: &mut RequestCx<'_>, response: &CalloutResponse) -> Flow {
        match proxied(response.body()) {
            Ok((status, fields, body)) => {
                let fields = fields.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
                answer(cx, status, fields, &body)
            }
            Err(error) => {
                let body = json!({ "message": "Bad Gateway", "error": error }).to_string();
                let answer = cx.reply(502).field("Content-Type", b"application/json; charset=utf-8");
                answer.body(body.as_bytes()).done()
            }
        }
    }
}

/// Status, fields and body that a function has said.
type Proxied = (u16, Vec<(String, String)>, Vec<u8>);

fn proxied(text: &[u8]) -> Result<Proxied, String> {
    let told: Value =
        serde_json::from_slice(text).map_err(|_| "failed to deserialize response: not JSON".to_owned())?;
    let told = told.as_object().ok_or("invalid response: expected an object")?;
    let status = told.get("statusCode").and_then(|status| status.as_u64().or_else(|| status.as_str()?.parse().ok()));
    let status = status.and_then(|status| u16::try_from(status).ok()).filter(|status| (200..=999).contains(status));
    let status = status.ok_or("invalid response: statusCode is not a valid status")?;
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut fields = Vec::new();
    let lists = told.get("multiValueHeaders").and_then(Value::as_object);
    for (name, values) in lists.into_iter().flatten() {
        fields.extend(values.as_array().into_iter().flatten().map(|value| (name.clone(), text(value))));
    }
    for (name, value) in told.get("headers").and_then(Value::as_object).into_iter().flatten() {
        if lists.is_none_or(|lists| !lists.contains_key(name)) {
            fields.push((name.clone(), text(value)));
        }
    }
    let body = match told.get("body") {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::String(body)) => body.clone().into_bytes(),
        Some(other) => other.to_string().into_bytes(),
    };
    if told.get("isBase64Encoded") != Some(&Value::Bool(true)) {
        return Ok((status, fields, body));
    }
    match STANDARD.decode(&body) {
        Ok(body) => Ok((status, fields, body)),
        Err(_) => Err("invalid response: the body is not base64".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::proxied;

    #[test]
    fn functions_say_their_answers() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        for (text, expected) in [
            (
                r#"{"statusCode":201,"headers":{"a":"1","n":2},"body":"x"}"#,
                Ok((201, vec![pair("a", "1"), pair("n", "2")], b"x".to_vec())),
            ),
            (
                r#"{"statusCode":"200","multiValueHeaders":{"a":["1","2"]},"headers":{"a":"3"}}"#,
                Ok((200, vec![pair("a", "1"), pair("a", "2")], Vec::new())),
            ),
            (r#"{"statusCode":200,"body":"aGk=","isBase64Encoded":true}"#, Ok((200, Vec::new(), b"hi".to_vec()))),
            (r#"{"statusCode":200,"body":{"a":1}}"#, Ok((200, Vec::new(), br#"{"a":1}"#.to_vec()))),
            ("x", Err("failed to deserialize response: not JSON".to_owned())),
            ("[]", Err("invalid response: expected an object".to_owned())),
            ("{}", Err("invalid response: statusCode is not a valid status".to_owned())),
            (
                r#"{"statusCode":200,"body":"*","isBase64Encoded":true}"#,
                Err("invalid response: the body is not base64".to_owned()),
            ),
        ] {
            assert_eq!(proxied(text.as_bytes()), expected, "{text}");
        }
    }
}
