//! `/weir/v1/self`: what developers do themselves, with their tokens: their applications, keys and usage, and nobody
//! else's.

use aws_lc_rs::constant_time::verify_slices_are_equal;
use hyper::{HeaderMap, Method, StatusCode};
use serde_json::{Map, Value, json};
use weir_store::Key;
use weir_usage::Arguments;

use super::applications::Application;
use super::developers::Developer;
use super::object;
use crate::answer::{Answer, Outcome};
use crate::api::{Api, unauthorized};
use crate::keys::{Identity, Role, key_digest};
use crate::request::Request;
use crate::sessions::{DEVELOPER_TOKEN, Shown, is_confirmed};

/// Keys that an application may have.
const MOST_KEYS: usize = 16;
/// A consumer that nobody is: the filter of a developer without applications.
const NOBODY: &str = "(nobody)";

impl Api {
    /// The developer whose token a request has.
    pub(crate) async fn developer_of(&self, fields: &HeaderMap) -> Result<Identity, Answer> {
        let token = fields.get(DEVELOPER_TOKEN).and_then(|token| token.to_str().ok());
        let token = token.ok_or_else(|| unauthorized("missing X-Developer-Token"))?;
        self.developer_by_token(token).await.map(|(identity, _)| identity)
    }

    /// The developer with a token, and the digest of the token's secret.
    pub(crate) async fn developer_by_token(&self, token: &str) -> Result<(Identity, String), Answer> {
        if self.standalone {
            return Err(unauthorized("there are no developers in standalone mode"));
        }
        if self.family.is_some() {
            return Err(unauthorized("there are no developers in this family"));
        }
        let wrong = || unauthorized("wrong token");
        let (id, secret) = token.rsplit_once('.').ok_or_else(wrong)?;
        let developer = self.developer(id).await.map_err(|answer| match answer.status {
            StatusCode::NOT_FOUND | StatusCode::BAD_REQUEST => wrong(),
            _ => answer,
        })?;
        let digest: String = key_digest(secret).iter().map(|byte| format!("{byte:02x}")).collect();
        let known = developer.text("token_sha256").ok_or_else(wrong)?;
        verify_slices_are_equal(known.as_bytes(), digest.as_bytes()).map_err(|_| wrong())?;
        if developer.is_suspended() {
            return Err(Answer::error(StatusCode::FORBIDDEN, "the developer is suspended"));
        }
        let name = format!("developer {}", developer.id());
        let developer = Some(developer.id().to_owned());
        Ok((Identity { name, role: Role::Developer, team: None, developer }, digest))
    }

    /// The developer of a session, if the token is still the one that began it.
    pub(crate) async fn developer_of_session(&self, method: &Method, shown: &Shown<'_>) -> Result<Identity, Answer> {
        let nobody = || unauthorized("missing X-Developer-Token");
        let token = shown.token().ok_or_else(nobody)?;
        let (identity, csrf, digest) = self.sessions.find_developer(token).ok_or_else(nobody)?;
        let developer = self.developer(identity.developer.as_deref().unwrap_or_default()).await;
        let developer = developer.ok().filter(|developer| developer.text("token_sha256") == Some(&digest));
        let developer = developer.ok_or_else(|| {
            self.sessions.end(token);
            unauthorized("the session has ended: the token is another one now")
        })?;
        if developer.is_suspended() {
            return Err(Answer::error(StatusCode::FORBIDDEN, "the developer is suspended"));
        }
        if !matches!(*method, Method::GET | Method::HEAD) && !is_confirmed(&csrf, shown.csrf()) {
            let message = "a change over a session needs its token in X-CSRF-Token: GET /weir/v1/session tells it";
            return Err(Answer::error(StatusCode::FORBIDDEN, message).unversioned());
        }
        Ok(identity)
    }

    /// The developer that asks, with the APIs that are open.
    pub(crate) async fn own(&self, request: &Request) -> Outcome {
        let developer = self.asking(request).await?;
        let plans = developer.plans();
        let mut told = developer.told();
        told["products"] = self.products_of(&plans).await?.into();
        Ok(Answer::json(StatusCode::OK, &told))
    }

    /// The OpenAPI documents of an API that is open to the developer.
    pub(crate) async fn own_documents(&self, api: &str, request: &Request) -> Outcome {
        let developer = self.asking(request).await?;
        let open = self.products_of(&developer.plans()).await?;
        if !open.iter().any(|product| product["api"] == api) {
            // Nobody learns of the APIs that others may call.
            return Err(Answer::error(StatusCode::NOT_FOUND, format!("there is no API {api}")));
        }
        self.product_documents(api).await
    }

    /// The developer's applications, with their keys.
    pub(crate) async fn own_applications(&self, request: &Request) -> Outcome {
        let developer = self.asking(request).await?;
        let _turn = self.turns.list().await?;
        let mut all = Vec::new();
        for application in self.applications_of(&developer).await? {
            let keys = self.credentials_of(application.id()).await?;
            let mut told = application.told();
            told["keys"] = keys.iter().map(super::keys::told).collect();
            all.push(told);
        }
        Ok(Answer::json(StatusCode::OK, &json!({ "total": all.len(), "applications": all })))
    }

    /// Makes an application.
    pub(crate) async fn add_own_application(&self, request: &Request) -> Outcome {
        let developer = self.asking(request).await?;
        let body = object(request, &["desc", "plans"])?;
        are_open(&developer, &body)?;
        self.make_application(developer, body, request).await
    }

    /// Changes an application.
    pub(crate) async fn change_own_application(&self, id: &str, request: &Request) -> Outcome {
        let developer = self.asking(request).await?;
        let application = self.application_of(&developer, id).await?;
        let body = object(request, &["desc", "plans"])?;
        are_open(&developer, &body)?;
        self.renew_application(application, &body, request).await
    }

    /// Removes an application with its keys.
    pub(crate) async fn remove_own_application(&self, id: &str, request: &Request) -> Outcome {
        let developer = self.asking(request).await?;
        let application = self.application_of(&developer, id).await?;
        self.drop_application(&application, Some(developer), request).await
    }

    /// Makes a key for an application.
    pub(crate) async fn add_own_key(&self, id: &str, request: &Request) -> Outcome {
        let developer = self.asking(request).await?;
        let application = self.application_of(&developer, id).await?;
        let body = object(request, &["id", "name", "desc"])?;
        if self.credentials_of(id).await?.len() >= MOST_KEYS {
            return Err(Answer::bad(format!("the application has {MOST_KEYS} keys, which is the most")));
        }
        self.make_key(&application.item, body, request).await
    }

    /// Renews a key.
    pub(crate) async fn change_own_key(&self, path: &[String], request: &Request) -> Outcome {
        let key = self.own_key(path, request).await?;
        let body = object(request, &["renew"])?;
        self.renew_key(&key, body, request).await
    }

    /// Takes a key back.
    pub(crate) async fn remove_own_key(&self, path: &[String], request: &Request) -> Outcome {
        let key = self.own_key(path, request).await?;
        self.revoke_key(&key, request).await
    }

    /// Usage of the developer's applications.
    pub(crate) async fn own_usage(&self, request: &Request) -> Outcome {
        let developer = self.asking(request).await?;
        let own = developer.applications();
        let mut arguments = request.query.pairs();
        let asked: Vec<&String> =
            arguments.iter().filter(|(name, _)| name == "consumer").map(|(_, value)| value).collect();
        if let Some(other) = asked.iter().find(|asked| !own.contains(asked)) {
            return Err(Answer::error(StatusCode::FORBIDDEN, format!("consumer: {other} is no application of yours")));
        }
        if asked.is_empty() {
            let all = if own.is_empty() { vec![NOBODY.to_owned()] } else { own };
            arguments.extend(all.into_iter().map(|application| ("consumer".to_owned(), application)));
        }
        self.answer_usage(Arguments(arguments)).await
    }

    /// Usage of the limits of the developer's applications.
    pub(crate) async fn own_quotas(&self, request: &Request) -> Outcome {
        let developer = self.asking(request).await?;
        let mut all = Vec::new();
        for application in self.applications_of(&developer).await? {
            let caller = self.caller_of(&application.item).await?;
            all.push(json!({ "id": application.id(), "counts": self.counts_of(&caller).await? }));
        }
        Ok(Answer::json(StatusCode::OK, &json!({ "applications": all })))
    }

    async fn asking(&self, request: &Request) -> Result<Developer, Answer> {
        match &request.by.developer {
            Some(id) => self.developer(id).await,
            None => Err(unauthorized("missing X-Developer-Token")),
        }
    }

    async fn application_of(&self, developer: &Developer, id: &str) -> Result<Application, Answer> {
        let application = self.application(id).await?;
        if application.developer() == Some(developer.id()) {
            return Ok(application);
        }
        // Nobody learns of the applications of others.
        Err(Answer::error(StatusCode::NOT_FOUND, format!("there is no application {id}")))
    }

    /// The place of a key of the developer's, as consumer and id.
    async fn own_key(&self, path: &[String], request: &Request) -> Result<[String; 2], Answer> {
        let [application, _, key] = path else { return Err(Answer::no_such_key()) };
        let developer = self.asking(request).await?;
        let application = self.application_of(&developer, application).await?;
        let place = format!("consumers/{}/credentials/{key}", application.id());
        place.parse::<Key>().map_err(|error| Answer::bad(error.to_string()))?;
        Ok([application.id().to_owned(), key.clone()])
    }
}

/// Checks that all plans of a request are open to a developer.
fn are_open(developer: &Developer, body: &Map<String, Value>) -> Result<(), Answer> {
    let open = developer.plans();
    let asked = body.get("plans").and_then(Value::as_array).into_iter().flatten();
    let is_open = |plan: &&Value| plan.as_str().is_some_and(|plan| open.iter().any(|one| one == plan));
    match { asked }.find(|plan| !is_open(plan)) {
        Some(plan) => Err(Answer::error(StatusCode::FORBIDDEN, format!("plans: {plan} is not open to you"))),
        None => Ok(()),
    }
}
