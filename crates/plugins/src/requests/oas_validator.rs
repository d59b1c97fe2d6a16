//! `oas-validator`: requests have to follow a document of OpenAPI.

mod body;
mod document;
mod parameter;
mod schemas;
mod template;

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use schemars::{JsonSchema, Schema};
use serde::Deserialize;
use tokio::sync::{Semaphore, oneshot};
use weir_config::schema::json_schema;
use weir_config::{Diagnostic, Node};
use weir_expr::{metered, spend};
use weir_plugin::{
    CompileCx, Compiled, Define, Flow, Invalid, Io, Keep, LocalFuture, Phases, Plugin, Remembered, RequestCx, Service,
    ServiceOptions,
};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

pub(crate) use document::Document;

/// The definition.
#[derive(Debug)]
pub(crate) struct OasValidator;

/// On a route, a service or a global rule.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Conf {
    /// The document: OpenAPI 3.0 or 3.1, as a text in JSON.
    #[schemars(length(min = 1))]
    spec: Option<String>,
    /// URL of the document, in the place of `spec`. Its length is bounded by `limits.callout_body`.
    spec_url: Option<String>,
    /// Fields of the request for `spec_url`.
    spec_url_request_headers: BTreeMap<String, String>,
    /// Verifies the certificate of the server at `spec_url`, by an authority of `tls.trusted_certificate`.
    ssl_verify: bool,
    /// Milliseconds for the answer of `spec_url`.
    #[schemars(range(min = 1000, max = 60000))]
    timeout: u64,
    /// Tells clients what is wrong.
    verbose_errors: bool,
    /// Leaves bodies unchecked.
    skip_request_body_validation: bool,
    /// Leaves parameters in header fields unchecked.
    skip_request_header_validation: bool,
    /// Leaves parameters in the query unchecked.
    skip_query_param_validation: bool,
    /// Leaves parameters in the path unchecked.
    skip_path_params_validation: bool,
    /// Refuses what does not follow the document; `false`: the log says so, and the request passes.
    reject_if_not_match: bool,
    /// The status of a refusal.
    #[schemars(range(min = 400, max = 599))]
    rejection_status_code: u16,
    /// Bytes of the longest body; a longer one is answered with 413.
    #[schemars(range(min = 1))]
    max_req_body_size: u64,
}

impl Default for Conf {
    fn default() -> Self {
        Self {
            spec: None,
            spec_url: None,
            spec_url_request_headers: BTreeMap::new(),
            ssl_verify: true,
            timeout: 10_000,
            verbose_errors: false,
            skip_request_body_validation: false,
            skip_request_header_validation: false,
            skip_query_param_validation: false,
            skip_path_params_validation: false,
            reject_if_not_match: true,
            rejection_status_code: 400,
            max_req_body_size: 64 << 20,
        }
    }
}

/// `plugin_metadata` of the plugin.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(default)]
struct Metadata {
    /// Seconds after which the document of a `spec_url` is fetched again.
    #[schemars(range(min = 1))]
    spec_url_ttl: u64,
}

impl Default for Metadata {
    fn default() -> Self {
        Self { spec_url_ttl: 3600 }
    }
}

impl Define for OasValidator {
    const NAME: &'static str = "oas-validator";
    const PRIORITY: i32 = 512;
    const PHASES: Phases = Phases::ACCESS;
    const DOC: &'static str = "\
Refuses requests that do not follow a document of OpenAPI, 3.0 or 3.1: by their method and path, the parameters in path, \
query and header fields, and the body. One of `spec` and `spec_url` is needed.

Paths of the document are whole paths: `servers` is not looked at. A path with fixed segments takes precedence over one with \
parameters in their place, and a slash at the end makes no difference. Parameters have the styles `simple`, `form`, \
`spaceDelimited`, `pipeDelimited` and `deepObject`, or `content` with JSON. Bodies are checked where they are JSON, forms or \
`multipart/form-data`; of any other media type only the type is checked. A property that is `readOnly` is refused in a request. \
Parameters in cookies and `security` are not checked.

Schemas and patterns follow the rules of [request-validation](request-validation.md); references lead to places within the \
document, such as `#/components/schemas/Order`. A document that is wrong refuses the configuration.

The document of a `spec_url` is fetched when the first request needs it, and again after `spec_url_ttl` seconds of \
`plugin_metadata`. Where it cannot be fetched or is wrong, the one before stays in use; without one, requests are answered with \
500.";
    const EXAMPLE: &'static str = "\
verbose_errors: true
spec: |
  {
    \"openapi\": \"3.0.3\",
    \"info\": {\"title\": \"orders\", \"version\": \"1\"},
    \"paths\": {
      \"/orders/{id}\": {
        \"get\": {
          \"parameters\": [{\"name\": \"id\", \"in\": \"path\", \"required\": true, \"schema\": {\"type\": \"integer\", \"minimum\": 1}}]
        }
      }
    }
  }
";
    const ENCRYPTED: &'static [&'static str] = &["spec_url_request_headers"];

    type Conf = Conf;
    type ConsumerConf = ();

    fn metadata_schema() -> Option<Schema> {
        Some(json_schema::<Metadata>())
    }

    fn check_metadata(metadata: &Node) -> Result<(), Vec<Diagnostic>> {
        weir_config::schema::read::<Metadata>(metadata).map(|_| ())
    }

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let rules = Rules::new(&conf);
        match (conf.spec, conf.spec_url) {
            (Some(spec), None) => {
                let document = compile_here(&spec).map_err(|fault| Invalid::new("spec", fault));
                let document = cx.ok(document)?;
                if document.has_cookies && !conf.skip_request_header_validation {
                    cx.warn("spec", "parameters in cookies are not checked");
                }
                Some(Compiled::ready(Inline { rules, document }))
            }
            (None, Some(url)) => {
                let timeout = Duration::from_millis(conf.timeout);
                let options =
                    ServiceOptions { verify: conf.ssl_verify, keepalive: None, timeout, ..Default::default() };
                let service = cx.ok(Service::parse("spec_url", &url, options));
                let fields = conf.spec_url_request_headers.iter().map(|(name, value)| {
                    let place = format!("spec_url_request_headers.{name}");
                    let is_good = value.bytes().all(weir_wire::is_field_byte);
                    let name = FieldName::new(name).filter(|_| is_good);
                    Ok((name.ok_or_else(|| Invalid::new(place, "expected a header field"))?, value.clone()))
                });
                let (fields, service) = (cx.ok(fields.collect::<Result<Vec<_>, _>>())?, service?);
                Some(Compiled::build(move |build| {
                    let Metadata { spec_url_ttl } = build.metadata()?;
                    let place = format!("oas-validator {} {}", build.place, build.conf.to_json());
                    let memory = build.states.get_or_create(&place, Memory::default);
                    let service = service.build(build)?;
                    let ttl_ms = spec_url_ttl.saturating_mul(1000);
                    Ok(Fetching { rules, service, fields, timeout, ttl_ms, memory })
                }))
            }
            _ => {
                cx.say([Invalid::new("", "expected either spec or spec_url")]);
                None
            }
        }
    }
}

/// Parts of a request that are left unchecked.
#[derive(Debug, Default)]
pub(crate) struct Skipped {
    body: bool,
    headers: bool,
    query: bool,
    path: bool,
}

/// The configuration apart from the document.
#[derive(Debug)]
struct Rules {
    skipped: Skipped,
    is_verbose: bool,
    rejects: bool,
    status: u16,
    most: u64,
}

impl Rules {
    fn new(conf: &Conf) -> Self {
        Self {
            skipped: Skipped {
                body: conf.skip_request_body_validation,
                headers: conf.skip_request_header_validation,
                query: conf.skip_query_param_validation,
                path: conf.skip_path_params_validation,
            },
            is_verbose: conf.verbose_errors,
            rejects: conf.reject_if_not_match,
            status: conf.rejection_status_code,
            most: conf.max_req_body_size,
        }
    }

    /// Asks for the body of the request where it is not there yet.
    fn await_body(&self, cx: &mut RequestCx<'_>) -> Flow {
        match cx.limit_body(self.most) {
            Flow::Continue if cx.body().is_none() => Flow::AwaitBody,
            other => other,
        }
    }

    fn check(&self, cx: &mut RequestCx<'_>, document: &Document) -> Flow {
        let Err(why) = document.check(cx.request(), &self.skipped) else { return Flow::Continue };
        if !self.rejects {
            tracing::warn!(why, "oas-validator: a request does not follow the document, and passes");
            return Flow::Continue;
        }
        let why = if self.is_verbose { why.as_str() } else { "" };
        cx.refuse(self.status, &format!("failed to validate request. {why}"))
    }
}

/// An instance with a document of its configuration. Reading a message into a tree allocates, which is little beside checking
/// it.
#[derive(Debug)]
struct Inline {
    rules: Rules,
    document: Document,
}

impl Plugin for Inline {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        if !self.rules.skipped.body && self.document.has_body(cx.request()) {
            match self.rules.await_body(cx) {
                Flow::Continue => {}
                other => return other,
            }
        }
        self.rules.check(cx, &self.document)
    }
}

/// Documents that were fetched. They outlive changes that leave the plugin as it is.
#[derive(Debug)]
struct Memory {
    documents: Arc<Remembered<Option<Arc<Document>>>>,
    /// The last good one.
    last: RwLock<Option<Arc<Document>>>,
}

impl Default for Memory {
    fn default() -> Self {
        Self { documents: Arc::new(Remembered::new(1, usize::MAX)), last: RwLock::default() }
    }
}

/// An instance with a document that a server has.
#[derive(Debug)]
struct Fetching {
    rules: Rules,
    service: Service,
    fields: Vec<(FieldName, String)>,
    timeout: Duration,
    ttl_ms: u64,
    memory: Arc<Memory>,
}

/// Milliseconds for which nobody asks again after a document could not be had.
const PAUSE_MS: u64 = 1000;

/// Memory that a document may take compiled, in bytes.
const MOST_BYTES: u64 = 32 << 20;

/// One document is compiled at a time, however many are fetched.
static COMPILING: Semaphore = Semaphore::const_new(1);

impl Plugin for Fetching {
    fn access(&self, cx: &mut RequestCx<'_>) -> Flow {
        match self.rules.skipped.body {
            true => Flow::Suspend,
            false => match self.rules.await_body(cx) {
                Flow::Continue => Flow::Suspend,
                other => other,
            },
        }
    }

    fn request_io<'a>(&'a self, cx: &'a mut RequestCx<'_>, io: &'a dyn Io) -> LocalFuture<'a, Flow> {
        Box::pin(async move {
            let ask = || self.ask(io);
            let document = self.memory.documents.get(b"", cx.now_ms(), ask).await;
            match &*document {
                Some(document) => self.rules.check(cx, document),
                None => cx.refuse(500, "failed to parse openapi spec"),
            }
        })
    }

    fn wait_limit(&self) -> Option<Duration> {
        // Another's question that is waited for, and one of its own.
        Some(2 * self.timeout + Duration::from_secs(10))
    }
}

impl Fetching {
    /// The document of the server, or the last good one.
    async fn ask(&self, io: &dyn Io) -> (Option<Arc<Document>>, Keep) {
        match self.fetch(io).await {
            Ok(document) => {
                let document = Some(Arc::new(document));
                self.memory.last.write().unwrap_or_else(PoisonError::into_inner).clone_from(&document);
                (document, Keep { ttl_ms: self.ttl_ms, bytes: 0 })
            }
            Err(reason) => {
                let last = self.memory.last.read().unwrap_or_else(PoisonError::into_inner).clone();
                tracing::warn!(reason, has_last = last.is_some(), "oas-validator: no document from spec_url");
                (last, Keep { ttl_ms: PAUSE_MS, bytes: 0 })
            }
        }
    }

    async fn fetch(&self, io: &dyn Io) -> Result<Document, String> {
        let mut question = self.service.callout(Method::Get);
        question.set_timeout(self.timeout);
        for (name, value) in &self.fields {
            question.set_field(name, value.as_bytes());
        }
        let answer = io.callout(question).await.map_err(|error| error.reason().to_owned())?;
        if answer.status() != 200 {
            return Err(format!("spec_url answers {}", answer.status()));
        }
        compile_apart(answer.body().to_vec()).await
    }
}

/// Stack of a thread that compiles a document: schemas may refer to each other in a long chain.
const STACK: usize = 64 << 20;

fn compiler() -> std::thread::Builder {
    std::thread::Builder::new().name("oas".to_owned()).stack_size(STACK)
}

/// Compiles a document of the configuration, within the budget of the configuration.
pub(crate) fn compile_here(text: &str) -> Result<Document, String> {
    let work = || metered(MOST_BYTES, || Document::compile(text.as_bytes()));
    let (document, bytes) = std::thread::scope(|scope| {
        let thread = compiler().spawn_scoped(scope, work).map_err(|error| error.to_string())?;
        thread.join().map_err(|_| "the document cannot be compiled".to_owned())
    })?;
    spend(bytes).map_err(|error| error.to_string())?;
    document
}

/// Compiles a document while its worker goes on: a large one takes a while, in which nobody would be served.
async fn compile_apart(text: Vec<u8>) -> Result<Document, String> {
    let permit = COMPILING.acquire().await.map_err(|error| error.to_string())?;
    let (sender, receiver) = oneshot::channel();
    let work = move || {
        let _permit = permit;
        let (document, _) = metered(MOST_BYTES, || Document::compile(&text));
        // The request may be over.
        let _ = sender.send(document);
    };
    compiler().spawn(work).map_err(|error| error.to_string())?;
    receiver.await.unwrap_or_else(|_| Err("the document cannot be compiled".to_owned()))
}
