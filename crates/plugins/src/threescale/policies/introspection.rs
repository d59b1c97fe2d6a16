//! `token_introspection`: tokens of which their provider is asked (RFC 7662).

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;
use weir_config::Node;
use weir_plugin::{CompileCx, Flow, Invalid, Io, Keep, LocalFuture, Remembered, RequestCx, Service, ServiceOptions};
use weir_wire::method::Method;
use weir_wire::name::FieldName;

use super::{DraftLink, read};
use crate::threescale::backend::TIMEOUT;
use crate::threescale::credentials::bearer;
use crate::threescale::errors::Refusal;
use crate::threescale::parts::Parts;
use crate::threescale::policy::{Phase, Policy, Step};
use crate::threescale::state::State;
use crate::threescale::usage::encode;

#[derive(Debug, Deserialize, JsonSchema)]
struct Conf {
    #[serde(default = "client")]
    auth_type: String,
    #[serde(default)]
    client_id: String,
    #[serde(default)]
    client_secret: String,
    #[serde(default)]
    introspection_url: String,
    /// Seconds for which an answer is remembered; 0: it is not.
    #[serde(default)]
    max_ttl_tokens: u64,
    /// Answers that are remembered.
    #[serde(default)]
    max_cached_tokens: usize,
}

fn client() -> String {
    "client_id+client_secret".to_owned()
}

/// The policy.
#[derive(Debug)]
struct Introspection {
    service: Service,
    authorization: Vec<u8>,
    known: Arc<Remembered<Answer>>,
    ttl_ms: u64,
    fields: [FieldName; 2],
}

/// Answer of the provider: whether the token is active, or why nobody can say.
type Answer = Result<bool, &'static str>;

/// Bytes of answers that are remembered.
const BYTES: usize = 4 << 20;

/// Compiles the policy.
pub(super) fn compile(conf: &Node, field: &str, cx: &CompileCx<'_>) -> Option<DraftLink> {
    let conf = read::<Conf>(conf, field, cx)?;
    if conf.auth_type != client() {
        let text = format!(
            "'{}' is not supported: expected client_id+client_secret, with client_id, client_secret and introspection_url",
            conf.auth_type
        );
        cx.say([Invalid::new(format!("{field}.auth_type"), text)]);
        return None;
    }
    let options = ServiceOptions { timeout: TIMEOUT, ..ServiceOptions::default() };
    let service = Service::parse("token_introspection", &conf.introspection_url, options)
        .map_err(|fault| Invalid { path: format!("{field}.introspection_url"), ..fault });
    let service = cx.ok(service)?;
    let authorization = format!("Basic {}", STANDARD.encode(format!("{}:{}", conf.client_id, conf.client_secret)));
    let (ttl_ms, most) = (conf.max_ttl_tokens.min(3600) * 1000, conf.max_cached_tokens.min(10_000));
    Some(DraftLink::built(move |site| {
        let key = format!("3scale introspection {} {authorization} {most} {}", conf.introspection_url, site.id);
        let name = FieldName::constant;
        Ok(Introspection {
            service: service.build(site.build)?,
            authorization: authorization.into_bytes(),
            known: site.build.states.get_or_create(&key, || Remembered::new(most, BYTES)),
            ttl_ms: if most == 0 { 0 } else { ttl_ms },
            fields: [name("Authorization"), name("Content-Type")],
        })
    }))
}

impl Introspection {
    async fn ask(&self, token: &[u8], io: &dyn Io) -> Answer {
        let mut question = self.service.callout(Method::Post);
        question.set_timeout(TIMEOUT);
        question.add_field(&self.fields[0], &self.authorization);
        question.add_field(&self.fields[1], b"application/x-www-form-urlencoded");
        let mut form = b"token=".to_vec();
        encode(token, &mut form);
        form.extend_from_slice(b"&token_type_hint=access_token");
        question.set_body(&form);
        let answer = io.callout(question).await.map_err(weir_plugin::CalloutError::reason)?;
        if answer.status() != 200 {
            return Err("token_introspection: the provider answered with an error");
        }
        let answer: Value = serde_json::from_slice(answer.body())
            .map_err(|_| "token_introspection: the provider's answer cannot be read")?;
        Ok(answer.get("active") == Some(&Value::Bool(true)))
    }
}

impl Policy for Introspection {
    fn access(&self, _: &Parts, _: &mut RequestCx<'_>, _: &mut State) -> Step {
        Step::Done(Flow::Suspend)
    }

    fn wait<'a>(
        &'a self,
        parts: &'a Parts,
        cx: &'a mut RequestCx<'_>,
        _: &'a mut State,
        io: &'a dyn Io,
        _: Phase,
    ) -> LocalFuture<'a, Step> {
        Box::pin(async move {
            let Some(token) = bearer(cx).map(<[u8]>::to_vec) else {
                return Step::Done(parts.errors.refuse(cx, Refusal::AuthFailed, None));
            };
            let ask = || async {
                let answer = self.ask(&token, io).await;
                let ttl_ms = if answer.is_ok() { self.ttl_ms } else { 0 };
                (answer, Keep { ttl_ms, bytes: 64 })
            };
            let answer = self.known.get(digest(&SHA256, &token).as_ref(), cx.now_ms(), ask).await;
            match *answer {
                Ok(true) => Step::Next,
                // A provider that does not answer lets nobody pass, as in APIcast.
                Ok(false) | Err(_) => Step::Done(parts.errors.refuse(cx, Refusal::AuthFailed, None)),
            }
        })
    }
}
