//! Applications of developers: consumers with the label `developer`, which the developer's resource lists.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Map, Value, json};
use weir_store::{Change, Expectation, Item, Key, Kind};

use super::developers::Developer;
use super::object;
use super::rights::wanted_team;
use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::keys::new_key;
use crate::request::Request;
use crate::write::set_times;

/// Random digits of an id that is made.
const ID: usize = 16;

/// An application as it is stored.
pub(super) struct Application {
    pub(super) item: Item,
    pub(super) value: Map<String, Value>,
}

impl Application {
    /// The id: the name of the consumer.
    pub(super) fn id(&self) -> &str {
        self.item.key.id()
    }

    /// The id of the developer.
    pub(super) fn developer(&self) -> Option<&str> {
        self.value.get("labels")?.get("developer")?.as_str()
    }

    /// The application as it is shown.
    pub(super) fn told(&self) -> Value {
        let plan = self.value.get("plugins").and_then(|plugins| plugins.get("plan"));
        let of_plan = |field: &str| plan.and_then(|plan| plan.get(field)).cloned();
        let mut told = json!({
            "id": self.id(),
            "developer": self.developer(),
            "plans": of_plan("plans").unwrap_or(json!([])),
            "suspended": of_plan("suspended").unwrap_or(false.into()),
            "created": self.item.created,
            "modified": self.item.modified,
        });
        if let Some(team) = self.value.get("labels").and_then(|labels| labels.get("team")) {
            told["team"] = team.clone();
        }
        for field in ["desc", "create_time", "update_time"] {
            if let Some(found) = self.value.get(field) {
                told[field] = found.clone();
            }
        }
        told
    }

    /// Puts the fields of a request in place.
    fn set(&mut self, body: &Map<String, Value>) -> Result<(), Answer> {
        match body.get("desc") {
            None => {}
            Some(Value::Null) => drop(self.value.shift_remove("desc")),
            Some(desc) => drop(self.value.insert("desc".to_owned(), desc.clone())),
        }
        let plugins = self.value.entry("plugins").or_insert_with(|| json!({}));
        let plan = plugins.as_object_mut().map(|plugins| plugins.entry("plan").or_insert_with(|| json!({})));
        let Some(Value::Object(plan)) = plan else { return Err(Answer::bad("plugins: expected a JSON object")) };
        for field in ["plans", "suspended"] {
            if let Some(found) = body.get(field) {
                plan.insert(field.to_owned(), found.clone());
            }
        }
        Ok(())
    }
}

impl Api {
    /// Applications of all developers, or of one.
    pub(crate) async fn applications(&self, request: &Request) -> Outcome {
        let (team, wanted) = (wanted_team(request)?, request.query.get("developer"));
        let _turn = self.turns.list().await?;
        let mut told = Vec::new();
        for developer in self.all_developers().await? {
            if wanted.is_none_or(|wanted| developer.id() == wanted) && developer.is_of(team) {
                told.extend(self.applications_of(&developer).await?.iter().map(Application::told));
            }
        }
        Ok(Answer::json(StatusCode::OK, &json!({ "total": told.len(), "applications": told })))
    }

    /// Makes an application for a developer.
    pub(crate) async fn add_application(&self, request: &Request) -> Outcome {
        let mut body = object(request, &["developer", "id", "desc", "plans"])?;
        let Some(Value::String(developer)) = body.shift_remove("developer") else {
            return Err(Answer::bad("developer: expected the id of a developer"));
        };
        let developer = self.developer(&developer).await?;
        self.make_application(developer, body, request).await
    }

    /// Changes an application.
    pub(crate) async fn change_application(&self, id: &str, request: &Request) -> Outcome {
        let body = object(request, &["desc", "plans", "suspended"])?;
        let application = self.application(id).await?;
        self.renew_application(application, &body, request).await
    }

    /// Removes an application with its keys.
    pub(crate) async fn remove_application(&self, id: &str, request: &Request) -> Outcome {
        let application = self.application(id).await?;
        let developer = match application.developer() {
            Some(developer) => self.developer(developer).await.ok(),
            None => None,
        };
        self.drop_application(&application, developer, request).await
    }

    /// The application with an id.
    pub(super) async fn application(&self, id: &str) -> Result<Application, Answer> {
        let missing = || Answer::error(StatusCode::NOT_FOUND, format!("there is no application {id}"));
        let key = consumer_key(id)?;
        let item = self.item(&key).await?.ok_or_else(missing)?;
        let value = serde_json::from_str::<Map<String, Value>>(&item.value).unwrap_or_default();
        let application = Application { item, value };
        // Other consumers are nobody's application.
        if application.developer().is_none() { Err(missing()) } else { Ok(application) }
    }

    /// The applications that a developer's resource lists and that are there.
    pub(super) async fn applications_of(&self, developer: &Developer) -> Result<Vec<Application>, Answer> {
        let mut found = Vec::new();
        for id in developer.applications() {
            match self.application(&id).await {
                Ok(application) if application.developer() == Some(developer.id()) => found.push(application),
                Ok(_) => {}
                Err(answer) if answer.status == StatusCode::NOT_FOUND => {}
                Err(answer) => return Err(answer),
            }
        }
        Ok(found)
    }

    /// Makes an application with these fields.
    pub(super) async fn make_application(
        &self,
        mut developer: Developer,
        mut body: Map<String, Value>,
        request: &Request,
    ) -> Outcome {
        let mut applications = developer.applications();
        if applications.len() as u64 >= developer.most() {
            let message = format!("the developer has {} applications, which is the most", applications.len());
            return Err(Answer::bad(message));
        }
        let id = match body.shift_remove("id") {
            None => format!("app-{}", random()?.chars().take(ID).collect::<String>()),
            Some(Value::String(id)) => id,
            Some(_) => return Err(Answer::bad("id: expected a text")),
        };
        if !body.get("plans").is_some_and(Value::is_array) {
            return Err(Answer::bad("plans: expected a list of ids of plans"));
        }
        let key = consumer_key(&id)?;
        if self.item(&key).await?.is_some() {
            return Err(super::conflict(&key));
        }
        let mut labels = json!({ "developer": developer.id() });
        if let Some(team) = developer.team() {
            labels["team"] = team.into();
        }
        let value = Map::from_iter([("username".to_owned(), id.as_str().into()), ("labels".to_owned(), labels)]);
        let item = Item { key: key.clone(), value: Arc::from(""), created: 0, modified: 0 };
        let mut application = Application { item, value };
        application.set(&body)?;
        set_times(&mut application.value, None, None);
        applications.push(id.clone());
        developer.value.insert("applications".to_owned(), applications.into());
        set_times(&mut developer.value, Some(&developer.item), None);
        let expect = vec![Expectation { key: key.clone(), modified: None }, developer.unchanged()];
        let changes = vec![change(key, &application.value)?, developer.change()?];
        let done = self.commit(changes, expect, request).await?;
        Ok(done.answer(StatusCode::CREATED, json!({ "id": id, "developer": developer.id() })))
    }

    /// Changes an application by these fields.
    pub(super) async fn renew_application(
        &self,
        mut application: Application,
        body: &Map<String, Value>,
        request: &Request,
    ) -> Outcome {
        application.set(body)?;
        set_times(&mut application.value, Some(&application.item), None);
        let key = application.item.key.clone();
        let expect = vec![Expectation { key: key.clone(), modified: Some(application.item.modified) }];
        let done = self.commit(vec![change(key, &application.value)?], expect, request).await?;
        Ok(done.answer(StatusCode::OK, json!({ "id": application.id() })))
    }

    /// Removes an application, its keys and its place in the list of its developer.
    pub(super) async fn drop_application(
        &self,
        application: &Application,
        developer: Option<Developer>,
        request: &Request,
    ) -> Outcome {
        let id = application.id();
        let mut changes = self.removal(id).await?;
        let mut expect =
            vec![Expectation { key: application.item.key.clone(), modified: Some(application.item.modified) }];
        if let Some(mut developer) = developer {
            let left: Vec<String> = developer.applications().into_iter().filter(|other| other != id).collect();
            developer.value.insert("applications".to_owned(), left.into());
            set_times(&mut developer.value, Some(&developer.item), None);
            expect.push(developer.unchanged());
            changes.push(developer.change()?);
        }
        let done = self.commit(changes, expect, request).await?;
        Ok(done.answer(StatusCode::OK, json!({ "id": id })))
    }

    /// The changes that remove an application with its keys.
    pub(super) async fn removal(&self, id: &str) -> Result<Vec<Change>, Answer> {
        let gone = |key: Key| Change { key, value: None, expires: None };
        let keys = self.credentials_of(id).await?;
        let own = keys.into_iter().map(|item| gone(item.key));
        Ok([gone(consumer_key(id)?)].into_iter().chain(own).collect())
    }

    /// The credentials of a consumer.
    pub(super) async fn credentials_of(&self, consumer: &str) -> Result<Vec<Item>, Answer> {
        let listing = self.configuration.listing(Some(Kind::Credentials)).await;
        let listing = listing.map_err(|error| Answer::store(&error))?;
        Ok(listing.items.into_iter().filter(|item| item.key.consumer() == Some(consumer)).collect())
    }
}

fn consumer_key(id: &str) -> Result<Key, Answer> {
    format!("consumers/{id}").parse::<Key>().map_err(|error| Answer::bad(format!("id: {error}")))
}

/// The change that gives a resource this value.
pub(super) fn change(key: Key, value: &Map<String, Value>) -> Result<Change, Answer> {
    let text = serde_json::to_string(value).map_err(|error| Answer::bad(error.to_string()))?;
    Ok(Change { key, value: Some(Arc::from(text)), expires: None })
}

/// A text that nobody guesses.
pub(super) fn random() -> Result<String, Answer> {
    new_key().map_err(|_| {
        tracing::error!("the system gives no random bytes");
        Answer::internal()
    })
}
