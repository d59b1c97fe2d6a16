//! `service`: a service of 3scale, with its chain of policies.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};
use weir_config::Node;
use weir_plugin::{CompileCx, Compiled, Define, Invalid, Phases};

use super::authorise::Settings;
use super::backend;
use super::chain::Chain;
use super::credentials::{Extractor, Location, Version};
use super::errors::{self, Errors};
use super::oidc;
use super::parts::{Fields, Parts};
use super::policies::{self, Apicast, Found};
use super::rules::{self, Rules};
use super::target::{Target, Url};
use super::text::{Names, TextType};
use super::usage::Metrics;

/// The definition.
#[derive(Debug)]
pub(crate) struct Service;

/// On the route of a service.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
pub(crate) struct Conf {
    /// Id of the service.
    id: String,
    /// Its name.
    system_name: String,
    /// Kind of its credentials.
    backend_version: Version,
    /// Name of the argument with the secret of the gateway: `service_token` or `provider_key`.
    backend_authentication_type: String,
    /// The secret.
    backend_authentication_value: String,
    /// Its proxy.
    proxy: Proxy,
    /// The provider of its tokens.
    oidc: Option<oidc::Conf>,
    /// The upstream of `api_backend`, for those of policies.
    #[schemars(with = "BTreeMap<String, Value>")]
    upstream: Map<String, Value>,
    /// True if certificates of the provider are verified.
    verify_provider: bool,
}

/// The proxy of a service.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct Proxy {
    /// URL of the upstream.
    api_backend: String,
    /// The `Host` that the upstream receives.
    hostname_rewrite: String,
    /// The value of `X-3scale-proxy-secret-token`.
    secret_token: String,
    /// Place of credentials.
    credentials_location: Location,
    /// Names of credentials.
    auth_user_key: Option<String>,
    auth_app_id: Option<String>,
    auth_app_key: Option<String>,
    /// Answers to requests that do not pass.
    #[serde(flatten)]
    errors: errors::Conf,
    /// The backend.
    backend: backend::Conf,
    /// URL of the provider of tokens.
    oidc_issuer_endpoint: Option<String>,
    /// The claim with the id of the application.
    jwt_claim_with_client_id: Option<String>,
    /// Its kind.
    jwt_claim_with_client_id_type: TextType,
    /// `oidc` where tokens are verified.
    authentication_method: Option<String>,
    /// Mapping rules.
    proxy_rules: Vec<rules::Conf>,
    /// The chain; without one it is the policy `apicast`.
    policy_chain: Option<Vec<PolicyConf>>,
}

/// A policy.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(default)]
struct PolicyConf {
    name: String,
}

impl Define for Service {
    const NAME: &'static str = "service";
    const PRIORITY: i32 = 1000;
    const PHASES: Phases = Phases::REWRITE.and(Phases::RESPONSE).and(Phases::BODY).and(Phases::LOG);
    const DOC: &'static str = "A service of 3scale: credentials, mapping rules, verdicts of a backend, policies.";
    const EXAMPLE: &'static str = "{id: '1', backend_version: '1', proxy: {policy_chain: [{name: echo}]}}\n";
    const ENCRYPTED: &'static [&'static str] = &[
        "backend_authentication_value",
        "proxy.secret_token",
        "proxy.policy_chain.*.configuration.all_proxy",
        "proxy.policy_chain.*.configuration.http_proxy",
        "proxy.policy_chain.*.configuration.https_proxy",
        "proxy.policy_chain.*.configuration.client_secret",
        "proxy.policy_chain.*.configuration.certificate_key",
        "upstream.proxies.http.authorization",
        "upstream.proxies.https.authorization",
        "upstream.tls.client_key",
    ];

    type Conf = Conf;
    type ConsumerConf = ();

    fn compile(conf: Conf, cx: &CompileCx<'_>) -> Option<Compiled> {
        let drafts = chain(&conf.proxy, cx);
        let parts = cx.ok(PartsDraft::compile(conf, drafts.as_ref()));
        let (drafts, parts) = (drafts?, parts?);
        Some(Compiled::build(move |build| {
            let (host, upstream) = (parts.host.clone(), parts.upstream.clone());
            let parts = parts.build(build)?;
            let mut links = Vec::with_capacity(drafts.links.len());
            for (number, draft) in drafts.links.into_iter().enumerate() {
                let site = policies::Site { build, number, host: &host, upstream: &upstream, id: &parts.names.id };
                links.push(draft.build(&site)?);
            }
            Ok(Chain::new(parts, links))
        }))
    }
}

/// Compiles the policies; `None` with an error among the findings.
fn chain(proxy: &Proxy, cx: &CompileCx<'_>) -> Option<Found> {
    let mut found = Found::default();
    let Some(chain) = &proxy.policy_chain else {
        found.links.push(policies::DraftLink::of(Apicast));
        found.has_apicast = true;
        return Some(found);
    };
    let written = cx.conf().get("proxy").and_then(|proxy| proxy.get("policy_chain")).and_then(Node::as_seq);
    let empty = Node::empty_map();
    let mut is_good = true;
    for (at, policy) in chain.iter().enumerate() {
        let field = format!("proxy.policy_chain[{at}]");
        let conf = written.and_then(|all| all.get(at)).and_then(|node| node.get("configuration")).unwrap_or(&empty);
        is_good &= found.add(&policy.name, conf, &field, &[], cx);
    }
    if !found.has_apicast {
        let text = "the chain has no policy apicast: requests pass without credentials and are not counted";
        cx.warn("proxy.policy_chain", text);
    }
    is_good.then_some(found)
}

/// [`Parts`], before they are built.
#[derive(Debug)]
struct PartsDraft {
    names: Names,
    errors: Errors,
    metrics: Metrics,
    rules: Rules,
    extractor: Extractor,
    settings: Option<Settings>,
    oidc: Option<oidc::Draft>,
    target: Option<Target>,
    secret: Box<[u8]>,
    debug_secret: Box<[u8]>,
    host: String,
    upstream: Map<String, Value>,
}

impl PartsDraft {
    fn compile(conf: Conf, found: Option<&Found>) -> Result<Self, Invalid> {
        let Conf { id, system_name, backend_version: version, proxy, .. } = conf;
        let metrics = Metrics::new(proxy.proxy_rules.iter().map(|rule| rule.metric_system_name.as_str()));
        let rules = Rules::compile(proxy.proxy_rules, &metrics, "proxy.proxy_rules")?;
        let has_apicast = found.is_some_and(|found| found.has_apicast);
        let settings = match has_apicast {
            true => {
                let secret = (&*conf.backend_authentication_type, &*conf.backend_authentication_value);
                let draft = backend::Draft::compile(proxy.backend, &id, secret, version, "proxy.backend.endpoint")?;
                Some(Settings {
                    backend: draft,
                    caching: found.and_then(|found| found.caching),
                    batching: found.and_then(|found| found.batching),
                })
            }
            false => None,
        };
        let is_oidc = has_apicast && version == Version::Token;
        let oidc = match is_oidc {
            true => {
                let claim = (proxy.jwt_claim_with_client_id.as_deref(), proxy.jwt_claim_with_client_id_type);
                let endpoint = proxy.oidc_issuer_endpoint.as_deref().filter(|url| !url.is_empty());
                Some(oidc::Draft::compile(conf.oidc, endpoint, claim, conf.verify_provider)?)
            }
            false => None,
        };
        let target = match proxy.api_backend.as_str() {
            "" => None,
            url => Some(Url::parse(url, "proxy.api_backend")?.on_route(Some(&proxy.hostname_rewrite), &conf.upstream)),
        };
        let name = |given: Option<String>, default: &str| {
            let given = given.filter(|name| !name.is_empty()).unwrap_or_else(|| default.to_owned());
            given.to_ascii_lowercase().into_boxed_str()
        };
        let names = match version {
            Version::UserKey => [name(proxy.auth_user_key, "user_key"), "".into()],
            Version::AppId => [name(proxy.auth_app_id, "app_id"), name(proxy.auth_app_key, "app_key")],
            Version::Token => ["access_token".into(), "".into()],
        };
        Ok(Self {
            names: Names { id: id.into(), system_name: system_name.into() },
            errors: Errors::compile(proxy.errors, "proxy")?,
            metrics,
            rules,
            extractor: Extractor { version, location: proxy.credentials_location, names },
            settings,
            oidc,
            target,
            secret: proxy.secret_token.into_bytes().into(),
            debug_secret: conf.backend_authentication_value.into_bytes().into(),
            host: proxy.hostname_rewrite,
            upstream: conf.upstream,
        })
    }

    fn build(self, build: &weir_plugin::BuildCx<'_>) -> Result<Parts, Invalid> {
        let has_batcher = self.settings.as_ref().is_some_and(|settings| settings.batching.is_some());
        let authoriser = self.settings.map(|settings| settings.build(&self.names.id, build)).transpose()?;
        Ok(Parts {
            authoriser,
            oidc: self.oidc.map(|oidc| oidc.build(build)).transpose()?,
            names: self.names,
            errors: self.errors,
            metrics: self.metrics,
            rules: self.rules,
            extractor: self.extractor,
            target: self.target,
            secret: self.secret,
            debug_secret: self.debug_secret,
            host_name: weir_plugin::hostname().as_bytes().into(),
            has_batcher,
            fields: Fields::new(),
        })
    }
}
