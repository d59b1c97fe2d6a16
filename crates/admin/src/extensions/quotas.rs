//! Quotas of callers: what is used of the limits of their plans, as this gateway has counted.

use std::time::{SystemTime, UNIX_EPOCH};

use hyper::StatusCode;
use serde_json::{Value, json};
use weir_store::{Change, Commit, Item, Key, Kind};

use crate::answer::{Answer, Outcome};
use crate::api::Api;
use crate::request::Request;
use crate::{QuotaName, Refused};

/// A caller with plans: a consumer, or one of its keys that has plans of its own.
pub(super) struct Caller {
    /// The name that counts have.
    name: String,
    plans: Vec<String>,
}

impl Api {
    /// Usage of a consumer's quotas, or of those of one of its keys.
    pub(crate) async fn quotas(&self, request: &Request) -> Outcome {
        let caller = self.caller(request).await?;
        let counts = self.counts_of(&caller).await?;
        Ok(Answer::json(StatusCode::OK, &json!({ "caller": caller.name, "counts": counts })))
    }

    /// Begins the counts of a consumer, or of one of its keys, anew.
    pub(crate) async fn reset_quotas(&self, request: &Request) -> Outcome {
        let caller = self.caller(request).await?;
        // As a change of the caller would need.
        let consumer = request.query.get("consumer").unwrap_or_default();
        let change = Change { key: Key::new(Kind::Consumers, consumer), value: None, expires: None };
        let commit = Commit { changes: vec![change], ..Commit::default() };
        self.check_rights(&commit, &request.by).await.map_err(|refused: Refused| super::refusal(&refused))?;
        let mut reset = 0;
        for (name, _) in self.names_of(&caller).await? {
            reset += usize::from(self.gateway.reset_quota(&name));
        }
        Ok(Answer::json(StatusCode::OK, &json!({ "caller": caller.name, "reset": reset })))
    }

    async fn caller(&self, request: &Request) -> Result<Caller, Answer> {
        let consumer = request.query.get("consumer").ok_or_else(|| Answer::bad("consumer: the argument is missing"))?;
        let key = format!("consumers/{consumer}").parse::<Key>();
        let item = self.item(&key.map_err(|error| Answer::bad(format!("consumer: {error}")))?).await?;
        let missing = || Answer::error(StatusCode::NOT_FOUND, format!("there is no consumer {consumer}"));
        let item = item.ok_or_else(missing)?;
        let Some(id) = request.query.get("key") else { return self.caller_of(&item).await };
        let key = format!("consumers/{consumer}/credentials/{id}").parse::<Key>();
        let key = self.item(&key.map_err(|error| Answer::bad(format!("key: {error}")))?).await?;
        let key = key.ok_or_else(|| Answer::error(StatusCode::NOT_FOUND, format!("there is no key {id}")))?;
        match texts(&read(&key), &["plan", "plans"]) {
            // It counts with its consumer.
            None => self.caller_of(&item).await,
            Some(plans) => Ok(Caller { name: format!("{consumer}/{id}"), plans }),
        }
    }

    /// A consumer with its plans, or those of its group.
    pub(super) async fn caller_of(&self, consumer: &Item) -> Result<Caller, Answer> {
        const PLANS: [&str; 3] = ["plugins", "plan", "plans"];
        let (name, value) = (consumer.key.id().to_owned(), read(consumer));
        let mut plans = texts(&value, &PLANS);
        if let (None, Some(group)) = (&plans, value.get("group_id").and_then(Value::as_str)) {
            let group = self.item(&Key::new(Kind::ConsumerGroups, group)).await?;
            plans = group.and_then(|group| texts(&read(&group), &PLANS));
        }
        Ok(Caller { name, plans: plans.unwrap_or_default() })
    }

    /// The counts of a caller. A limit whose period has not begun has used nothing; one that counts routes or services apart
    /// is told for each that has been called.
    pub(super) async fn counts_of(&self, caller: &Caller) -> Result<Vec<Value>, Answer> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let mut told = Vec::new();
        for (name, mut limit) in self.names_of(caller).await? {
            let found = self.gateway.quota(&name, now);
            if found.is_none() && !name.id.is_empty() {
                continue;
            }
            let (used, reset) = found.unwrap_or_default();
            let count = limit.get("limit").and_then(Value::as_u64).unwrap_or_default();
            limit["used"] = used.into();
            limit["remaining"] = count.saturating_sub(used).into();
            limit["resets_in"] = reset.div_ceil(1000).into();
            told.push(limit);
        }
        Ok(told)
    }

    /// The names of a caller's counts, each with its limit as it is told.
    async fn names_of(&self, caller: &Caller) -> Result<Vec<(QuotaName, Value)>, Answer> {
        let metadata = self.item(&Key::new(Kind::PluginMetadata, "plan")).await?;
        let policy = metadata.and_then(|item| read(&item).get("policy").and_then(Value::as_str).map(str::to_owned));
        if policy.is_some_and(|policy| policy != "local") {
            let message = "counts of plans are in a Redis (plugin_metadata of plan), and not in this gateway";
            return Err(Answer::error(StatusCode::NOT_FOUND, message));
        }
        let _turn = self.turns.list().await?;
        let mut names = Vec::new();
        for id in &caller.plans {
            let Some(plan) = self.item(&Key::new(Kind::Plans, id)).await? else { continue };
            for limit in read(&plan).get("limits").and_then(Value::as_array).into_iter().flatten() {
                let text =
                    |field: &str, default: &str| limit.get(field).and_then(Value::as_str).unwrap_or(default).to_owned();
                let (scope, metric) = (text("scope", "plan"), text("metric", ""));
                let apart = match scope.as_str() {
                    "service" => self.ids_of(Kind::Services).await?,
                    "route" => self.ids_of(Kind::Routes).await?,
                    _ => Vec::new(),
                };
                for apart in apart.into_iter().chain([String::new()]) {
                    let name = QuotaName {
                        caller: caller.name.clone(),
                        plan: id.clone(),
                        per: text("per", ""),
                        window: text("window", "fixed"),
                        scope: if metric.is_empty() { scope.clone() } else { format!("{scope}/{metric}") },
                        id: apart,
                    };
                    let mut told = json!({ "plan": id, "limit": limit.get("count"), "per": name.per, "window": name.window, "scope": scope });
                    for (field, text) in [("metric", &metric), ("id", &name.id)] {
                        if !text.is_empty() {
                            told[field] = text.as_str().into();
                        }
                    }
                    names.push((name, told));
                }
            }
        }
        Ok(names)
    }

    async fn ids_of(&self, kind: Kind) -> Result<Vec<String>, Answer> {
        let listing = self.configuration.listing(Some(kind)).await.map_err(|error| Answer::store(&error))?;
        Ok(listing.items.iter().map(|item| item.key.own_id().to_owned()).collect())
    }
}

fn read(item: &Item) -> Value {
    serde_json::from_str(&item.value).unwrap_or_default()
}

/// The texts of a list at a path.
fn texts(value: &Value, path: &[&str]) -> Option<Vec<String>> {
    let list = path.iter().try_fold(value, |value, field| value.get(field))?.as_array()?;
    Some(list.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}
