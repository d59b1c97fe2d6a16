//! Rules of alerts: their conditions, and the text of their messages.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use anyhow::bail;
use jiff::Timestamp;
use serde_json::{Value, json};
use weir_config::settings::{AlertOn, UsageAlert};
use weir_plugins::QuotaUse;
use weir_usage::Arguments;

/// Subjects of which an alert knows when it sent a message. A message about a further one is not sent.
const SUBJECTS: usize = 100_000;
/// Groups that are looked at.
const MOST_APIS: &str = "10000";

/// A rule.
#[derive(Debug)]
pub(super) struct Rule {
    name: String,
    looks: Looks,
}

#[derive(Debug)]
enum Looks {
    Quota { shares: Vec<u8> },
    Errors { percent: f64, of: Sample },
    Latency { over_ms: f64, percentile: f64, of: Sample },
}

/// The requests that are looked at.
#[derive(Debug)]
struct Sample {
    minutes: u32,
    requests: u64,
    apis: Option<Vec<String>>,
}

impl Rule {
    /// The rule of a setting.
    ///
    /// # Errors
    /// A field has no effect with `on`, or is missing.
    pub(super) fn of(alert: &UsageAlert) -> anyhow::Result<Self> {
        if !super::is_address(alert) {
            bail!("url: expected http://HOST… or https://HOST…");
        }
        let has =
            |given: bool, name: &'static str, with: &[AlertOn]| (given && !with.contains(&alert.on)).then_some(name);
        let on_usage = [AlertOn::Errors, AlertOn::Latency];
        let unused = [
            has(alert.shares.is_some(), "shares", &[AlertOn::Quota]),
            has(alert.percent.is_some(), "percent", &[AlertOn::Errors]),
            has(alert.over_ms.is_some(), "over_ms", &[AlertOn::Latency]),
            has(alert.percentile.is_some(), "percentile", &[AlertOn::Latency]),
            has(alert.minutes.is_some(), "minutes", &on_usage),
            has(alert.requests.is_some(), "requests", &on_usage),
            has(alert.apis.is_some(), "apis", &on_usage),
        ];
        if let Some(name) = unused.into_iter().flatten().next() {
            let on = match alert.on {
                AlertOn::Quota => "quota",
                AlertOn::Errors => "errors",
                AlertOn::Latency => "latency",
            };
            bail!("{name}: it has no effect with on: {on}");
        }
        let of = Sample {
            minutes: alert.minutes.unwrap_or(5),
            requests: alert.requests.unwrap_or(100).into(),
            apis: alert.apis.clone(),
        };
        let looks = match alert.on {
            AlertOn::Quota => Looks::Quota { shares: alert.shares.clone().unwrap_or_else(|| vec![80, 100]) },
            AlertOn::Errors => Looks::Errors { percent: alert.percent.unwrap_or(5.0), of },
            AlertOn::Latency => {
                let Some(over_ms) = alert.over_ms else {
                    bail!("over_ms: the field is missing: on: latency needs it");
                };
                Looks::Latency { over_ms, percentile: alert.percentile.unwrap_or(99.0), of }
            }
        };
        Ok(Self { name: alert.name.clone(), looks })
    }

    /// Shares of limits that it is about.
    pub(super) fn shares(&self) -> &[u8] {
        match &self.looks {
            Looks::Quota { shares } => shares,
            _ => &[],
        }
    }

    /// The message about a share that a caller has used, unless it was sent a while ago.
    pub(super) fn of_quota(&self, note: &QuotaUse, repeats: &mut Repeats) -> Option<Value> {
        let name = String::from_utf8_lossy(&note.name);
        if !repeats.admit(&format!("{} {name}", note.share), Instant::now()) {
            return None;
        }
        let mut message = json!({
            "alert": self.name,
            "on": "quota",
            "time": Timestamp::now().to_string(),
            "share": note.share,
            "limit": note.count,
            "used": note.used,
            "resets_in": note.reset.div_ceil(1000),
            "count": name,
        });
        // The parts of a plan's counter, from the end on: only the caller may have a colon in it.
        let parts: Vec<&str> = name.rsplitn(6, ':').collect();
        if let [id, scope, window, per, plan, caller] = parts.as_slice() {
            let (scope, metric) = scope.split_once('/').map_or((*scope, None), |(scope, metric)| (scope, Some(metric)));
            let (consumer, key) =
                caller.split_once('/').map_or((*caller, None), |(consumer, key)| (consumer, Some(key)));
            for (field, text) in [
                ("consumer", Some(consumer)),
                ("key", key),
                ("plan", Some(*plan)),
                ("per", Some(*per)),
                ("window", Some(*window)),
                ("scope", Some(scope)),
                ("metric", metric),
                ("id", Some(*id).filter(|id| !id.is_empty())),
            ] {
                if let Some(text) = text {
                    message[field] = text.into();
                }
            }
        }
        Some(message)
    }

    /// The question to the usage.
    pub(super) fn question(&self) -> Arguments {
        let (of, percentiles) = match &self.looks {
            Looks::Errors { of, .. } => (Some(of), String::new()),
            Looks::Latency { of, percentile, .. } => (Some(of), percentile.to_string()),
            Looks::Quota { .. } => (None, String::new()),
        };
        let minutes = of.map_or(1, |of| of.minutes);
        let mut arguments = vec![
            ("from", format!("-{minutes}m")),
            ("group_by", "api".to_owned()),
            ("percentiles", percentiles),
            ("limit", MOST_APIS.to_owned()),
        ];
        let apis = of.and_then(|of| of.apis.as_ref()).into_iter().flatten();
        arguments.extend(apis.map(|api| ("api", api.clone())));
        Arguments(arguments.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    }

    /// The messages about what the usage answers: an API that is beyond the rule, unless that was sent a while ago, and one
    /// that is so no longer.
    pub(super) fn of_usage(&self, answer: &str, repeats: &mut Repeats) -> Vec<Value> {
        let answer: Value = serde_json::from_str(answer).unwrap_or_default();
        let now = Instant::now();
        let mut messages = Vec::new();
        let mut beyond = Vec::new();
        for row in answer.get("rows").and_then(Value::as_array).into_iter().flatten() {
            let number = |field: &str| row.get(field).and_then(Value::as_f64).unwrap_or_default();
            let api = row.get("api").and_then(Value::as_str).unwrap_or_default();
            let requests = number("requests");
            let (on, value, threshold, of) = match &self.looks {
                Looks::Quota { .. } => return Vec::new(),
                Looks::Errors { percent, of } => {
                    ("errors", ("percent", number("server_errors") * 100.0 / requests.max(1.0)), *percent, of)
                }
                Looks::Latency { over_ms, percentile, of } => {
                    ("latency", ("ms", number(&format!("p{percentile}_ms"))), *over_ms, of)
                }
            };
            if requests < of.requests as f64 || value.1 < threshold {
                continue;
            }
            beyond.push(api.to_owned());
            if repeats.admit(api, now) {
                let mut message = self.message(on, "firing", api);
                message[value.0] = ((value.1 * 1000.0).round() / 1000.0).into();
                message["threshold"] = threshold.into();
                message["requests"] = (requests as u64).into();
                message["minutes"] = of.minutes.into();
                messages.push(message);
            }
        }
        let on = if matches!(self.looks, Looks::Errors { .. }) { "errors" } else { "latency" };
        for api in repeats.forget_all_but(&beyond) {
            messages.push(self.message(on, "resolved", &api));
        }
        messages
    }

    fn message(&self, on: &str, state: &str, api: &str) -> Value {
        json!({ "alert": self.name, "on": on, "time": Timestamp::now().to_string(), "state": state, "api": api })
    }
}

/// Times at which messages were sent, by subject.
#[derive(Debug)]
pub(super) struct Repeats {
    pause: Duration,
    sent: HashMap<String, Instant>,
}

impl Repeats {
    pub(super) fn new(pause: Duration) -> Self {
        Self { pause, sent: HashMap::new() }
    }

    /// True if a message about a subject may be sent now; it counts as sent then.
    fn admit(&mut self, subject: &str, now: Instant) -> bool {
        if self.sent.get(subject).is_some_and(|sent| now.duration_since(*sent) < self.pause) {
            return false;
        }
        if self.sent.len() >= SUBJECTS {
            let pause = self.pause;
            self.sent.retain(|_, sent| now.duration_since(*sent) < pause);
            if self.sent.len() >= SUBJECTS {
                return false;
            }
        }
        self.sent.insert(subject.to_owned(), now);
        true
    }

    /// Forgets all subjects but these. Gives those that are forgotten.
    fn forget_all_but(&mut self, left: &[String]) -> Vec<String> {
        let gone: Vec<String> = self.sent.keys().filter(|subject| !left.contains(subject)).cloned().collect();
        for subject in &gone {
            self.sent.remove(subject);
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::{Duration, Instant, QuotaUse, Repeats, Rule, UsageAlert, Value, json};

    fn alert(fields: Value) -> UsageAlert {
        let mut all = json!({ "name": "a", "url": "http://127.0.0.1/x" });
        let Value::Object(fields) = fields else { panic!("expected an object, found {fields}") };
        all.as_object_mut().expect("an object").extend(fields);
        serde_json::from_value(all).expect("an alert")
    }

    fn rule(fields: Value) -> Rule {
        Rule::of(&alert(fields)).expect("a rule")
    }

    #[test]
    fn fields_without_effect_are_refused() {
        for (fields, reason) in [
            (json!({ "on": "quota", "percent": 5 }), "percent: it has no effect with on: quota"),
            (json!({ "on": "errors", "over_ms": 5 }), "over_ms: it has no effect with on: errors"),
            (json!({ "on": "latency", "shares": [50], "over_ms": 1 }), "shares: it has no effect with on: latency"),
            (json!({ "on": "quota", "apis": ["a"] }), "apis: it has no effect"),
            (json!({ "on": "latency" }), "over_ms: the field is missing"),
            (json!({ "on": "quota", "url": "file:///etc" }), "url: expected http://HOST"),
        ] {
            let error = Rule::of(&alert(fields.clone())).expect_err("refused");
            assert!(error.to_string().contains(reason), "{fields}: {error}");
        }
    }

    #[test]
    fn a_quota_is_told_by_its_parts_and_not_again() {
        let (rule, mut repeats) = (rule(json!({ "on": "quota" })), Repeats::new(Duration::from_secs(60)));
        assert_eq!(rule.shares(), [80, 100]);
        let note =
            |name: &str, share| QuotaUse { name: name.as_bytes().into(), count: 10, used: 8, share, reset: 1500 };
        let message = rule.of_quota(&note("jack/phone:gold:month:calendar:route/exports:r1", 80), &mut repeats);
        let mut message = message.expect("a message");
        message["time"] = Value::Null;
        let expected = json!({
            "alert": "a", "on": "quota", "time": null, "share": 80, "limit": 10, "used": 8, "resets_in": 2,
            "count": "jack/phone:gold:month:calendar:route/exports:r1", "consumer": "jack", "key": "phone", "plan": "gold",
            "per": "month", "window": "calendar", "scope": "route", "metric": "exports", "id": "r1",
        });
        assert_eq!(message, expected);
        let mut told = |name, share| rule.of_quota(&note(name, share), &mut repeats).is_some();
        let name = "jack/phone:gold:month:calendar:route/exports:r1";
        assert_eq!([told(name, 80), told(name, 100), told("jill:gold:month:calendar:plan:", 80)], [false, true, true]);
    }

    #[test]
    fn an_api_beyond_a_threshold_is_told_until_it_is_not() {
        let row = |api: &str, requests: u64, errors: u64, ms: f64| json!({ "api": api, "requests": requests, "server_errors": errors, "p95_ms": ms });
        let answer = |rows: Vec<Value>| json!({ "rows": rows }).to_string();
        let told = |rule: &Rule, repeats: &mut Repeats, rows: Vec<Value>| -> Vec<String> {
            let messages = rule.of_usage(&answer(rows), repeats);
            messages
                .iter()
                .map(|one| format!("{} {} {}", one["on"], one["state"], one["api"]).replace('"', ""))
                .collect()
        };
        let errors = rule(json!({ "on": "errors", "percent": 10, "requests": 50 }));
        let mut repeats = Repeats::new(Duration::from_secs(60));
        let rows = || vec![row("a", 100, 10, 0.0), row("b", 100, 9, 0.0), row("few", 49, 49, 0.0)];
        assert_eq!(told(&errors, &mut repeats, rows()), ["errors firing a"]);
        assert!(told(&errors, &mut repeats, rows()).is_empty());
        assert_eq!(told(&errors, &mut repeats, vec![row("a", 100, 1, 0.0)]), ["errors resolved a"]);
        assert!(told(&errors, &mut repeats, vec![]).is_empty());
        let latency = rule(json!({ "on": "latency", "over_ms": 50, "percentile": 95, "requests": 1 }));
        let rows = vec![row("a", 1, 0, 50.0), row("b", 1, 0, 49.9)];
        assert_eq!(told(&latency, &mut Repeats::new(Duration::from_secs(1)), rows), ["latency firing a"]);
        let question = rule(json!({ "on": "latency", "over_ms": 1, "percentile": 99.9, "minutes": 7, "apis": ["x"] }));
        let text = format!("{:?}", question.question());
        for part in ["\"-7m\"", "\"99.9\"", "(\"api\", \"x\")"] {
            assert!(text.contains(part), "{text}");
        }
    }

    #[test]
    fn subjects_are_forgotten_after_their_pause() {
        let (mut repeats, now) = (Repeats::new(Duration::from_secs(10)), Instant::now());
        assert!(repeats.admit("a", now));
        assert!(!repeats.admit("a", now + Duration::from_secs(9)));
        assert!(repeats.admit("a", now + Duration::from_secs(10)));
    }
}
