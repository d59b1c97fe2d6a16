//! Developers: people who have applications, and look after them with a token.

use hyper::StatusCode;
use serde_json::{Map, Value, json};
use weir_store::{Change, Expectation, Item, Key, Kind};

use super::applications::{change, random};
use super::object;
use super::rights::wanted_team;
use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::keys::key_digest;
use crate::request::Request;
use crate::write::set_times;

/// Random digits of an id that is made.
const ID: usize = 16;
/// Applications that a developer may have unless told.
const APPLICATIONS: u64 = 10;

/// A developer as stored.
pub(super) struct Developer {
    pub(super) item: Item,
    pub(super) value: Map<String, Value>,
}

impl Developer {
    fn new(item: Item) -> Self {
        let value = serde_json::from_str(&item.value).unwrap_or_default();
        Self { item, value }
    }

    pub(super) fn id(&self) -> &str {
        self.item.key.id()
    }

    pub(super) fn text(&self, field: &str) -> Option<&str> {
        self.value.get(field)?.as_str()
    }

    pub(super) fn team(&self) -> Option<&str> {
        self.value.get("labels")?.get("team")?.as_str()
    }

    /// True if the developer is of a team, or nobody asks for one.
    pub(super) fn is_of(&self, team: Option<&str>) -> bool {
        team.is_none() || self.team() == team
    }

    pub(super) fn is_suspended(&self) -> bool {
        self.value.get("suspended").and_then(Value::as_bool).unwrap_or(false)
    }

    /// Applications that the developer may have.
    pub(super) fn most(&self) -> u64 {
        self.value.get("max_applications").and_then(Value::as_u64).unwrap_or(APPLICATIONS)
    }

    pub(super) fn applications(&self) -> Vec<String> {
        self.texts("applications")
    }

    /// Plans that the developer may put applications on.
    pub(super) fn plans(&self) -> Vec<String> {
        self.texts("plans")
    }

    fn texts(&self, field: &str) -> Vec<String> {
        let texts = self.value.get(field).and_then(Value::as_array).into_iter().flatten();
        texts.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// The expectation that nobody else has changed the resource.
    pub(super) fn unchanged(&self) -> Expectation {
        Expectation { key: self.item.key.clone(), modified: Some(self.item.modified) }
    }

    /// The change that keeps the value.
    pub(super) fn change(&self) -> Result<Change, Answer> {
        change(self.item.key.clone(), &self.value)
    }

    /// The developer as shown, without what stands for the token.
    pub(super) fn told(&self) -> Value {
        let mut told = json!({
            "id": self.id(),
            "plans": self.plans(),
            "applications": self.applications(),
            "max_applications": self.most(),
            "suspended": self.is_suspended(),
            "created": self.item.created,
            "modified": self.item.modified,
        });
        for field in ["name", "desc", "email", "create_time", "update_time"] {
            if let Some(found) = self.value.get(field) {
                told[field] = found.clone();
            }
        }
        if let Some(team) = self.team() {
            told["team"] = team.into();
        }
        told
    }

    /// Gives the developer a new token.
    fn renew_token(&mut self) -> Result<String, Answer> {
        let secret = random()?;
        let digest: String = key_digest(&secret).iter().map(|byte| format!("{byte:02x}")).collect();
        self.value.insert("token_sha256".to_owned(), digest.into());
        Ok(format!("{}.{secret}", self.id()))
    }

    /// Puts the fields of a request in place; null removes one.
    fn set(&mut self, body: Map<String, Value>) {
        for (field, found) in body {
            match found {
                Value::Null => drop(self.value.shift_remove(&field)),
                found => drop(self.value.insert(field, found)),
            }
        }
    }
}

impl Api {
    /// All developers, or those of a team.
    pub(crate) async fn developers(&self, request: &Request) -> Outcome {
        let team = wanted_team(request)?;
        let _turn = self.turns.list().await?;
        let all = self.all_developers().await?;
        let told: Vec<Value> = all.iter().filter(|one| one.is_of(team)).map(Developer::told).collect();
        Ok(Answer::json(StatusCode::OK, &json!({ "total": told.len(), "developers": told })))
    }

    /// Adds a developer, with a token.
    pub(crate) async fn add_developer(&self, request: &Request) -> Outcome {
        let mut body = object(request, &["id", "name", "desc", "email", "team", "plans", "max_applications"])?;
        let id = match body.shift_remove("id") {
            None => random()?.chars().take(ID).collect(),
            Some(Value::String(id)) => id,
            Some(_) => return Err(Answer::bad("id: expected a text")),
        };
        let key = developer_key(&id)?;
        if self.item(&key).await?.is_some() {
            return Err(super::conflict(&key));
        }
        let team = match (body.shift_remove("team"), &request.by.team) {
            (Some(Value::String(team)), _) => Some(team),
            (None, own) => own.clone(),
            (Some(_), _) => return Err(Answer::bad("team: expected a text")),
        };
        let item = Item { key: key.clone(), value: "".into(), created: 0, modified: 0 };
        let value = Map::from_iter([("id".to_owned(), id.as_str().into())]);
        let mut developer = Developer { item, value };
        if let Some(team) = team {
            developer.value.insert("labels".to_owned(), json!({ "team": team }));
        }
        developer.set(body);
        let token = developer.renew_token()?;
        set_times(&mut developer.value, None, None);
        let expect = vec![Expectation { key, modified: None }];
        let done = self.commit(vec![developer.change()?], expect, request).await?;
        Ok(done.answer(StatusCode::CREATED, json!({ "id": id, "token": token })))
    }

    /// Changes a developer, or renews the token.
    pub(crate) async fn change_developer(&self, id: &str, request: &Request) -> Outcome {
        let known = ["name", "desc", "email", "plans", "max_applications", "suspended", "renew_token"];
        let mut body = object(request, &known)?;
        let mut developer = self.developer(id).await?;
        let mut more = json!({ "id": id });
        match body.shift_remove("renew_token") {
            None | Some(Value::Bool(false)) => {}
            Some(Value::Bool(true)) => more["token"] = developer.renew_token()?.into(),
            Some(_) => return Err(Answer::bad("renew_token: expected true or false")),
        }
        developer.set(body);
        set_times(&mut developer.value, Some(&developer.item), None);
        let done = self.commit(vec![developer.change()?], vec![developer.unchanged()], request).await?;
        Ok(done.answer(StatusCode::OK, more))
    }

    /// Removes a developer, with all applications and their keys.
    pub(crate) async fn remove_developer(&self, id: &str, request: &Request) -> Outcome {
        let developer = self.developer(id).await?;
        let mut changes = vec![Change { key: developer.item.key.clone(), value: None, expires: None }];
        let mut expect = vec![developer.unchanged()];
        let applications = self.applications_of(&developer).await?;
        for application in &applications {
            changes.extend(self.removal(application.id()).await?);
            expect.push(Expectation { key: application.item.key.clone(), modified: Some(application.item.modified) });
        }
        let done = self.commit(changes, expect, request).await?;
        Ok(done.answer(StatusCode::OK, json!({ "id": id, "applications": applications.len() })))
    }

    /// The developer with an id.
    pub(super) async fn developer(&self, id: &str) -> Result<Developer, Answer> {
        let item = self.item(&developer_key(id)?).await?;
        let missing = || Answer::error(StatusCode::NOT_FOUND, format!("there is no developer {id}"));
        item.map(Developer::new).ok_or_else(missing)
    }

    /// All developers.
    pub(super) async fn all_developers(&self) -> Result<Vec<Developer>, Answer> {
        let listing = self.configuration.listing(Some(Kind::Developers)).await;
        let listing = listing.map_err(|error| Answer::store(&error))?;
        Ok(listing.items.into_iter().map(Developer::new).collect())
    }
}

fn developer_key(id: &str) -> Result<Key, Answer> {
    format!("developers/{id}").parse::<Key>().map_err(|error| Answer::bad(format!("id: {error}")))
}
