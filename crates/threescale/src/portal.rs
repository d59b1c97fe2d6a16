//! The portal that hands out configurations: the requests to it, and one document of their answers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use weir_config::env::Variables;
use weir_config::node::MAX_TEXT_BYTES;

/// Configurations of one page.
const PER_PAGE: usize = 500;
/// Most pages, so that a portal without pages ends.
const MOST_PAGES: usize = 200;

/// Pages of a portal, fetched by whoever has a client for HTTP.
pub trait Pages {
    /// The body of a page.
    ///
    /// # Errors
    /// The page cannot be fetched, or has another status than 200.
    fn get(&self, url: &str, authorization: Option<&str>) -> Result<String, String>;
}

/// A portal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Portal {
    /// The URL without user, password and slash at its end.
    endpoint: String,
    authorization: Option<String>,
    /// Name of the environment, such as `production`.
    environment: String,
    /// Services with their versions, where one has another than `latest`.
    versions: Vec<(String, String)>,
    /// True if nothing has to be there when the gateway starts.
    pub is_lazy: bool,
    /// Seconds between two looks; `None`: there is one look.
    pub seconds: Option<u64>,
}

impl Portal {
    /// The portal of the environment; `None` without `THREESCALE_PORTAL_ENDPOINT`.
    ///
    /// # Errors
    /// A variable has no value that can be used.
    pub fn read(variables: Variables<'_>) -> Result<Option<Self>, String> {
        let given = |name: &str| variables(name).filter(|value| !value.is_empty());
        let Some(url) = given("THREESCALE_PORTAL_ENDPOINT") else { return Ok(None) };
        let (endpoint, authorization) = endpoint(&url).ok_or(
            "THREESCALE_PORTAL_ENDPOINT: expected https://ACCESS-TOKEN@HOST, with the access token of the portal",
        )?;
        let is_lazy = match given("APICAST_CONFIGURATION_LOADER").as_deref() {
            None | Some("boot") => false,
            Some("lazy") => true,
            Some(other) => {
                return Err(format!("APICAST_CONFIGURATION_LOADER: expected boot or lazy, found '{other}'"));
            }
        };
        let seconds = match given("APICAST_CONFIGURATION_CACHE") {
            None if is_lazy => Some(1),
            None => Some(300),
            Some(text) => match text.trim().parse::<i64>() {
                Ok(..0) => None,
                Ok(seconds) if is_lazy => Some(seconds.unsigned_abs().max(1)),
                Ok(seconds @ 60..) => Some(seconds.unsigned_abs()),
                _ => {
                    let expected = "expected at least 60 seconds with the loader boot, or -1 for one look";
                    return Err(format!("APICAST_CONFIGURATION_CACHE: {expected}; found '{text}'"));
                }
            },
        };
        let list = given("APICAST_SERVICES_LIST").or_else(|| given("APICAST_SERVICES")).unwrap_or_default();
        let ids = list.split(',').map(str::trim).filter(|id| !id.is_empty());
        let version = |id: &str| given(&format!("APICAST_SERVICE_{id}_CONFIGURATION_VERSION"));
        let versions: Vec<(String, Option<String>)> = ids.map(|id| (id.to_owned(), version(id))).collect();
        let has_version = versions.iter().any(|(_, version)| version.is_some());
        let latest = |(id, version): (String, Option<String>)| (id, version.unwrap_or_else(|| "latest".to_owned()));
        Ok(Some(Self {
            endpoint,
            authorization,
            environment: given("THREESCALE_DEPLOYMENT_ENV").unwrap_or_else(|| "production".to_owned()),
            versions: if has_version { versions.into_iter().map(latest).collect() } else { Vec::new() },
            is_lazy,
            seconds,
        }))
    }

    /// The URL without its secret, for messages.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.endpoint
    }

    /// Fetches all configurations, as one document.
    ///
    /// # Errors
    /// The portal does not answer, or not as a portal does.
    pub fn fetch(&self, pages: &dyn Pages) -> Result<String, String> {
        let mut all = Vec::new();
        if self.versions.is_empty() {
            self.fetch_list(pages, &mut all)?;
        }
        for (id, version) in &self.versions {
            let path = format!("/admin/api/services/{id}/proxy/configs/{}/{version}.json", self.environment);
            let answer = self.page(pages, &path)?;
            let config = answer.get("proxy_config").ok_or_else(|| format!("{path}: expected proxy_config"))?;
            all.push(json!({ "proxy_config": config }));
        }
        let text = json!({ "proxy_configs": all }).to_string();
        if text.len() > MAX_TEXT_BYTES {
            return Err(format!("more than the {MAX_TEXT_BYTES} bytes that are read"));
        }
        Ok(text)
    }

    fn fetch_list(&self, pages: &dyn Pages, all: &mut Vec<Value>) -> Result<(), String> {
        for number in 1..=MOST_PAGES {
            let path = format!(
                "/admin/api/account/proxy_configs/{}.json?version=latest&page={number}&per_page={PER_PAGE}",
                self.environment
            );
            let mut answer = self.page(pages, &path)?;
            let Some(Value::Array(list)) = answer.get_mut("proxy_configs").map(Value::take) else {
                return Err(format!("{path}: expected a list proxy_configs"));
            };
            let count = list.len();
            all.extend(list);
            if count != PER_PAGE {
                return Ok(());
            }
        }
        Err(format!("more than {} configurations", MOST_PAGES * PER_PAGE))
    }

    fn page(&self, pages: &dyn Pages, path: &str) -> Result<Value, String> {
        let body = pages.get(&format!("{}{path}", self.endpoint), self.authorization.as_deref())?;
        serde_json::from_str(&body).map_err(|error| format!("{path}: no JSON: {error}"))
    }
}

/// The URL without its user, and the value of `Authorization` for the user.
fn endpoint(url: &str) -> Option<(String, Option<String>)> {
    let (scheme, rest) = url.split_once("://")?;
    if !matches!(scheme, "http" | "https") || rest.is_empty() {
        return None;
    }
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    if host.is_empty() {
        return None;
    }
    let basic = |user: &str| {
        // A token is a user without a password, as in APIcast.
        let pair = if user.contains(':') { user.to_owned() } else { format!("{user}:") };
        format!("Basic {}", STANDARD.encode(pair))
    };
    Some((format!("{scheme}://{host}{}", path.trim_end_matches('/')), user.map(basic)))
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::{Value, json};

    use super::{Pages, Portal};

    fn portal(variables: &[(&str, &str)]) -> Result<Option<Portal>, String> {
        Portal::read(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    struct Answers(RefCell<Vec<(String, Option<String>)>>, fn(&str) -> Value);

    impl Pages for Answers {
        fn get(&self, url: &str, authorization: Option<&str>) -> Result<String, String> {
            self.0.borrow_mut().push((url.to_owned(), authorization.map(str::to_owned)));
            Ok((self.1)(url).to_string())
        }
    }

    #[test]
    fn a_portal_is_asked_page_by_page() {
        let found =
            portal(&[("THREESCALE_PORTAL_ENDPOINT", "https://token@admin.test/")]).expect("a portal").expect("one");
        assert_eq!((found.seconds, found.is_lazy, found.name()), (Some(300), false, "https://admin.test"));
        let answers = Answers(RefCell::default(), |url| {
            let count = if url.contains("page=1&") { 500 } else { 1 };
            json!({ "proxy_configs": vec![json!({"proxy_config": {"content": {}}}); count] })
        });
        let document: Value = serde_json::from_str(&found.fetch(&answers).expect("a document")).expect("JSON");
        assert_eq!(document["proxy_configs"].as_array().map(Vec::len), Some(501));
        let asked = answers.0.borrow();
        let url =
            "https://admin.test/admin/api/account/proxy_configs/production.json?version=latest&page=2&per_page=500";
        assert_eq!(asked.get(1), Some(&(url.to_owned(), Some("Basic dG9rZW46".to_owned()))));
    }

    #[test]
    fn services_may_have_versions() {
        let found = portal(&[
            ("THREESCALE_PORTAL_ENDPOINT", "http://u:p@admin.test"),
            ("THREESCALE_DEPLOYMENT_ENV", "staging"),
            ("APICAST_SERVICES_LIST", "3,5"),
            ("APICAST_SERVICE_5_CONFIGURATION_VERSION", "7"),
            ("APICAST_CONFIGURATION_LOADER", "lazy"),
            ("APICAST_CONFIGURATION_CACHE", "0"),
        ]);
        let found = found.expect("a portal").expect("one");
        assert_eq!((found.seconds, found.is_lazy), (Some(1), true));
        let answers = Answers(RefCell::default(), |_| json!({"proxy_config": {"content": {"id": 1}}}));
        let document = found.fetch(&answers).expect("a document");
        assert_eq!(
            document,
            json!({"proxy_configs": vec![json!({"proxy_config": {"content": {"id": 1}}}); 2]}).to_string()
        );
        let asked: Vec<String> = answers.0.borrow().iter().map(|(url, _)| url.clone()).collect();
        assert_eq!(
            asked,
            [
                "http://admin.test/admin/api/services/3/proxy/configs/staging/latest.json",
                "http://admin.test/admin/api/services/5/proxy/configs/staging/7.json"
            ]
        );
    }

    #[test]
    fn variables_have_to_be_right() {
        assert_eq!(portal(&[]), Ok(None));
        let url = ("THREESCALE_PORTAL_ENDPOINT", "https://t@a.test");
        for (variables, says) in [
            (vec![("THREESCALE_PORTAL_ENDPOINT", "a.test")], "expected https://ACCESS-TOKEN@HOST"),
            (vec![url, ("APICAST_CONFIGURATION_LOADER", "x")], "expected boot or lazy"),
            (vec![url, ("APICAST_CONFIGURATION_CACHE", "5")], "at least 60 seconds"),
        ] {
            let error = portal(&variables).expect_err("no portal");
            assert!(error.contains(says), "{error}");
        }
    }
}
