//! Policies, merged into a session each time that it is compiled.

use std::collections::HashMap;

use serde_json::{Map, Value, json};

use super::session::{float, number};

/// Policies by their ids.
pub type Policies = HashMap<String, Value>;

/// Parts of a policy that may be applied apart.
const PARTITIONS: [&str; 4] = ["quota", "rate_limit", "acl", "complexity"];

/// Fields of a policy that limit each API where the policy is `per_api`.
const OF_LIMIT: [&str; 6] =
    ["rate", "per", "quota_max", "quota_renewal_rate", "throttle_interval", "throttle_retry_limit"];

/// A session with the policies that it names applied.
///
/// # Errors
/// No policy of several is there, the only one is missing or of another organisation, `per_api` beside other partitions, or
/// none of the policies gives access.
pub(super) fn apply(session: &Value, policies: &Policies) -> Result<Value, String> {
    let Value::Object(own) = session else { return Err("a session is an object".to_owned()) };
    let mut ids: Vec<&str> = texts(own.get("apply_policies")).collect();
    if ids.is_empty() {
        ids.extend(own.get("apply_policy_id").and_then(Value::as_str).filter(|id| !id.is_empty()));
    }
    if ids.is_empty() {
        return Ok(session.clone());
    }
    let org = own.get("org_id").and_then(Value::as_str).unwrap_or_default();
    let mut merged = Merged::new(own.clone());
    for id in &ids {
        let policy = policies.get(*id).filter(|policy| {
            let of = policy.get("org_id").and_then(Value::as_str).unwrap_or_default();
            of == org || of.is_empty() || org.is_empty()
        });
        match policy {
            Some(policy) => merged.add(id, policy)?,
            None if ids.len() == 1 => return Err(format!("policy not found: {id:?}")),
            None => {}
        }
    }
    merged.finish()
}

fn texts(value: Option<&Value>) -> impl Iterator<Item = &str> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str)
}

fn flag(value: &Value, field: &str) -> bool {
    value.get(field) == Some(&Value::Bool(true))
}

/// A session while policies are applied.
struct Merged {
    session: Map<String, Value>,
    rights: Map<String, Value>,
    is_any: bool,
    has_access: bool,
    has_rate: bool,
    has_quota: bool,
    has_complexity: bool,
}

impl Merged {
    fn new(session: Map<String, Value>) -> Self {
        let (has_access, has_rate, has_quota, has_complexity) = (false, false, false, false);
        Self { session, rights: Map::new(), is_any: false, has_access, has_rate, has_quota, has_complexity }
    }

    fn add(&mut self, id: &str, policy: &Value) -> Result<(), String> {
        let partitions = policy.get("partitions").cloned().unwrap_or_default();
        let chosen = PARTITIONS.map(|name| flag(&partitions, name));
        let per_api = flag(&partitions, "per_api");
        let any = chosen.contains(&true);
        if per_api && any {
            return Err(format!("cannot apply policy {id} which has per_api and any of partitions set"));
        }
        self.is_any = true;
        let [quota, rate, acl, complexity] = if any { chosen } else { [!per_api, !per_api, true, !per_api] };
        if acl {
            self.add_rights(id, policy, per_api);
        }
        if quota {
            self.add_quota(policy);
        }
        if rate {
            self.add_rate(policy);
        }
        if complexity {
            let depth = number(policy.get("max_query_depth"));
            let before = number(self.session.get("max_query_depth"));
            if !self.has_complexity || depth == -1 || before != -1 && depth > before {
                self.session.insert("max_query_depth".to_owned(), depth.into());
            }
            self.has_complexity = true;
        }
        if flag(policy, "is_inactive") {
            self.session.insert("is_inactive".to_owned(), true.into());
        }
        let tags = self.session.get("tags").cloned().unwrap_or_default();
        let mut all: Vec<&str> = texts(Some(&tags)).collect();
        for tag in texts(policy.get("tags")) {
            if !all.contains(&tag) {
                all.push(tag);
            }
        }
        if !all.is_empty() {
            self.session.insert("tags".to_owned(), json!(all));
        }
        if let Some(Value::Object(meta)) = policy.get("meta_data") {
            let held = self.session.entry("meta_data").or_insert_with(|| json!({}));
            if let Value::Object(held) = held {
                held.extend(meta.iter().map(|(name, value)| (name.clone(), value.clone())));
            }
        }
        Ok(())
    }

    fn add_rights(&mut self, id: &str, policy: &Value, per_api: bool) {
        self.has_access = true;
        for (key, right) in policy.get("access_rights").and_then(Value::as_object).into_iter().flatten() {
            let api = right.get("api_id").and_then(Value::as_str).filter(|api| !api.is_empty()).unwrap_or(key);
            let mut right = right.clone();
            let Value::Object(fields) = &mut right else { continue };
            if per_api {
                let has_own = fields.get("limit").and_then(Value::as_object).is_some_and(|limit| !limit.is_empty());
                let scope = if has_own { api } else { id };
                fields.insert("allowance_scope".to_owned(), scope.into());
                if !has_own {
                    let of_policy = OF_LIMIT.iter();
                    let limit = of_policy.filter_map(|name| Some(((*name).to_owned(), policy.get(*name)?.clone())));
                    fields.insert("limit".to_owned(), Value::Object(limit.collect()));
                }
            } else {
                fields.shift_remove("limit");
            }
            match self.rights.get_mut(api) {
                Some(Value::Object(before)) => unite(before, fields),
                _ => drop(self.rights.insert(api.to_owned(), right)),
            }
        }
    }

    /// The policy with the greater quota counts; -1 is the greatest.
    fn add_quota(&mut self, policy: &Value) {
        for field in ["quota_max", "quota_renewal_rate"] {
            let (new, before) = (number(policy.get(field)), number(self.session.get(field)));
            if !self.has_quota || new == -1 || before != -1 && new > before {
                self.session.insert(field.to_owned(), new.into());
            }
        }
        self.has_quota = true;
    }

    /// The policy with the smaller time between two requests counts; one without a rate is the fastest.
    fn add_rate(&mut self, policy: &Value) {
        let between = |value: &dyn Fn(&str) -> f64| {
            let (rate, per) = (value("rate"), value("per"));
            if rate > 0.0 && per > 0.0 { per / rate } else { 0.0 }
        };
        let new = between(&|field| float(policy.get(field)));
        let before = between(&|field| float(self.session.get(field)));
        if !self.has_rate || new < before {
            for field in ["rate", "per", "smoothing", "throttle_interval", "throttle_retry_limit"] {
                match policy.get(field) {
                    Some(value) => drop(self.session.insert(field.to_owned(), value.clone())),
                    None => drop(self.session.shift_remove(field)),
                }
            }
        }
        self.has_rate = true;
    }

    fn finish(mut self) -> Result<Value, String> {
        if !self.has_access {
            let own = self.session.get("access_rights").and_then(Value::as_object);
            if !self.is_any || own.is_none_or(Map::is_empty) {
                return Err("key has no valid policies to be applied".to_owned());
            }
            return Ok(Value::Object(self.session));
        }
        self.session.insert("access_rights".to_owned(), Value::Object(self.rights));
        Ok(Value::Object(self.session))
    }
}

/// Unites the lists of two rights to one API.
fn unite(before: &mut Map<String, Value>, more: &Map<String, Value>) {
    for field in ["versions", "allowed_urls"] {
        let Some(Value::Array(new)) = more.get(field) else { continue };
        match before.get_mut(field) {
            Some(Value::Array(held)) => {
                for value in new {
                    if !held.contains(value) {
                        held.push(value.clone());
                    }
                }
            }
            _ => drop(before.insert(field.to_owned(), Value::Array(new.clone()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Policies, apply};

    fn policies() -> Policies {
        let rights = json!({"a": {"api_id": "a", "versions": ["Default"]}});
        let all = json!({
            "slow": {"org_id": "o", "rate": 1, "per": 10, "quota_max": 5, "quota_renewal_rate": 60, "access_rights": rights, "tags": ["s"]},
            "fast": {"org_id": "o", "rate": 10, "per": 1, "quota_max": -1, "access_rights": {"b": {}}, "meta_data": {"m": "1"}},
            "rate": {"org_id": "o", "rate": 3, "per": 1, "partitions": {"rate_limit": true}},
            "acl": {"org_id": "o", "rate": 9, "per": 1, "partitions": {"acl": true}, "access_rights": rights},
            "mixed": {"org_id": "o", "partitions": {"acl": true, "per_api": true}},
            "other": {"org_id": "p", "access_rights": rights},
            "each": {"org_id": "o", "rate": 4, "per": 2, "partitions": {"per_api": true}, "access_rights": {"a": {}, "b": {"limit": {"rate": 1, "per": 1}}}},
            "off": {"org_id": "o", "is_inactive": true, "access_rights": rights},
        });
        let Value::Object(all) = all else { return Policies::new() };
        all.into_iter().collect()
    }

    fn applied(ids: &[&str]) -> Result<Value, String> {
        apply(&json!({"org_id": "o", "rate": 100, "per": 1, "quota_max": 7, "apply_policies": ids}), &policies())
    }

    #[test]
    fn policies_are_merged_as_in_tyk() {
        let slow = applied(&["slow"]).expect("a session");
        assert_eq!((&slow["rate"], &slow["per"], &slow["quota_max"]), (&json!(1), &json!(10), &json!(5)));
        assert_eq!((&slow["access_rights"]["a"]["versions"], &slow["tags"]), (&json!(["Default"]), &json!(["s"])));
        let both = applied(&["slow", "fast"]).expect("a session");
        assert_eq!((&both["rate"], &both["quota_max"]), (&json!(10), &json!(-1)));
        assert_eq!(both["access_rights"].as_object().map(|rights| rights.len()), Some(2));
        assert_eq!(both["meta_data"], json!({"m": "1"}));
        let parts = applied(&["rate", "acl"]).expect("a session");
        assert_eq!((&parts["rate"], &parts["quota_max"]), (&json!(3), &json!(7)), "what no policy sets is the key's");
        let each = applied(&["each"]).expect("a session");
        assert_eq!(each["access_rights"]["a"]["allowance_scope"], "each");
        assert_eq!(each["access_rights"]["a"]["limit"], json!({"rate": 4, "per": 2}));
        assert_eq!(each["access_rights"]["b"]["allowance_scope"], "b");
        assert_eq!(applied(&["off"]).expect("a session")["is_inactive"], true);
        assert!(applied(&["slow", "none"]).is_ok(), "one that is not there is left out");
    }

    #[test]
    fn what_gives_no_access_is_refused() {
        for (ids, text) in [
            (&["rate"][..], "key has no valid policies to be applied"),
            (&["none"], "policy not found: \"none\""),
            (&["other"], "policy not found: \"other\""),
            (&["mixed"], "cannot apply policy mixed which has per_api and any of partitions set"),
            (&["none", "other"], "key has no valid policies to be applied"),
        ] {
            assert_eq!(applied(ids), Err(text.to_owned()), "{ids:?}");
        }
    }
}
