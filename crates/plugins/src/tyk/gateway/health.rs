//! `/hello` and `/ready`: what of the gateway works.

use serde_json::{Map, Value, json};

use crate::tyk::VERSION;

/// Tyk's words for a Redis that does not answer.
const AWAY: &str = "storage: Redis is either down or was not configured";

/// State of the gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Health {
    /// True if Redis answers; `None`: the gateway has none.
    pub(super) redis: Option<bool>,
    /// False if the last reload was refused, so that older definitions are in force.
    pub(super) is_loaded: bool,
}

impl Health {
    /// The page of health. A fault is told in the page, and never by the status of the answer, as in Tyk.
    pub(super) fn page(self) -> Vec<u8> {
        let time = jiff::Timestamp::now().to_string();
        let mut details = Map::new();
        if let Some(is_there) = self.redis {
            let mut redis = json!({ "status": "pass", "componentType": "datastore", "time": time });
            if !is_there {
                redis = json!({ "status": "fail", "output": AWAY, "componentType": "datastore", "time": time });
            }
            details.insert("redis".to_owned(), redis);
        }
        if !self.is_loaded {
            let output = "the last reload was refused: the definitions before it are in force";
            let configuration = json!({ "status": "warn", "output": output, "componentType": "system", "time": time });
            details.insert("configuration".to_owned(), configuration);
        }
        let status = match (self.redis, self.is_loaded) {
            (Some(false), _) => "fail",
            (_, false) => "warn",
            _ => "pass",
        };
        let mut page = json!({ "status": status, "version": VERSION, "description": "Tyk GW" });
        if !details.is_empty() {
            page["details"] = Value::Object(details);
        }
        let mut page = page.to_string().into_bytes();
        page.push(b'\n');
        page
    }

    /// Status, media type and body of the page of readiness.
    pub(super) fn readiness(self) -> (u16, &'static [u8], &'static [u8]) {
        match self.redis {
            Some(false) => {
                let body = b"{\"status\":\"error\",\"message\":\"Redis connection not available\"}\n";
                (503, b"application/json", body)
            }
            _ => (200, b"text/plain; charset=utf-8", b"Tyk GW Ready"),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Health;

    #[test]
    fn the_worst_fault_is_told() {
        for (redis, is_loaded, status, ready) in [
            (None, true, "pass", 200),
            (Some(true), true, "pass", 200),
            (None, false, "warn", 200),
            (Some(false), true, "fail", 503),
            (Some(false), false, "fail", 503),
        ] {
            let health = Health { redis, is_loaded };
            let page: Value = serde_json::from_slice(&health.page()).expect("JSON");
            assert_eq!((&page["status"], health.readiness().0), (&json!(status), ready), "{page}");
            let told = |name: &str| page["details"][name]["status"].as_str().map(str::to_owned);
            assert_eq!(told("redis"), redis.map(|is_there| if is_there { "pass" } else { "fail" }.to_owned()));
            assert_eq!(told("configuration"), (!is_loaded).then(|| "warn".to_owned()));
        }
    }
}
