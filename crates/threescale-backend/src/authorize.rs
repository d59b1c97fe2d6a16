//! Authorisation of a call: `authorize`, `authrep` and their kinds for OAuth.

use serde_json::{Map, Value};

use crate::catalog::{Catalog, Credentials, Indexed};
use crate::counts::{Counts, Used};
use crate::extensions::Extensions;
use crate::fault::Fault;
use crate::model::Application;
use crate::params::{Params, filled, text};
use crate::usage::Usage;

/// The kind of an authorisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Kind {
    /// True for `authrep`, which counts what it authorises.
    pub(crate) reports: bool,
    /// True for the kinds for OAuth.
    pub(crate) is_oauth: bool,
}

/// The verdict on a call.
#[derive(Debug)]
pub(crate) struct Verdict<'c> {
    pub(crate) service: &'c Indexed,
    pub(crate) application: &'c Application,
    pub(crate) kind: Kind,
    /// `None`: it is authorised.
    pub(crate) refusal: Option<Fault>,
    /// The application's limits, with what was used before this call.
    pub(crate) used: Vec<Used>,
    /// Usage of the call; `None` for one without.
    pub(crate) usage: Option<Usage>,
    /// True if the call names its redirect address `redirect_uri`.
    pub(crate) says_uri: bool,
}

/// The usage that a call names; an error for one that is no `usage[METRIC]=N`, which is answered without a body.
pub(crate) fn given_usage(params: &Params) -> Result<Option<&Map<String, Value>>, ()> {
    match params.get("usage") {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(usage)) => Ok(Some(usage)),
        Some(_) => Err(()),
    }
}

/// The credentials of a gateway in a call.
pub(crate) fn credentials(params: &Params) -> Credentials<'_> {
    Credentials {
        provider_key: filled(params, "provider_key"),
        token: filled(params, "service_token"),
        service: filled(params, "service_id"),
    }
}

/// Decides a call at a time in milliseconds since 1970, and counts what it uses if it is authorised and reports.
pub(crate) fn authorize<'c>(
    catalog: &'c Catalog,
    counts: &Counts,
    kind: Kind,
    (params, extensions): (&Params, Extensions),
    now: u64,
) -> Result<Verdict<'c>, Fault> {
    let service = catalog.service_of_call(&credentials(params))?;
    let application = find_application(catalog, service, kind, params)?;
    let given = given_usage(params).ok().flatten().filter(|usage| !usage.is_empty());
    if let Some(given) = given.filter(|_| extensions.no_body) {
        let unknown = given.keys().find(|name| service.metric(name.trim()).is_none());
        if let Some(name) = unknown {
            return Err(Fault::MetricInvalid(name.clone()));
        }
    }
    let used = counts.used(service, application, now);
    let mut verdict = Verdict { service, application, kind, refusal: None, used, usage: None, says_uri: false };
    verdict.refusal = verdict.refusal_before_limits(params).err();
    if verdict.refusal.is_some() {
        return Ok(verdict);
    }
    verdict.usage = given.map(|given| Usage::read(service, given, extensions.flat_usage)).transpose()?;
    if !verdict.is_within_limits() {
        verdict.refusal = Some(Fault::LimitsExceeded);
        return Ok(verdict);
    }
    if let Some(usage) = verdict.usage.as_ref().filter(|_| kind.reports) {
        counts.charge(service, application, usage, (now, now))?;
    }
    Ok(verdict)
}

/// The application of a call, by what its service identifies applications by.
fn find_application<'c>(
    catalog: &'c Catalog,
    service: &Indexed,
    kind: Kind,
    params: &Params,
) -> Result<&'c Application, Fault> {
    let (id, user_key) = (filled(params, "app_id"), filled(params, "user_key"));
    if kind.is_oauth && id.is_none() {
        return Err(Fault::ApplicationNotFound(None));
    }
    if id.is_some() && user_key.is_some() {
        return Err(Fault::AuthenticationError);
    }
    let service_id = &service.service.id;
    if service.is_of_user_keys() {
        let found = user_key.and_then(|key| catalog.id_of_user_key(service_id, key));
        let id = found.ok_or_else(|| Fault::UserKeyInvalid(user_key.map(str::to_owned)))?;
        return catalog.application_of(service_id, Some(id), None);
    }
    catalog.application_of(service_id, id, None)
}

impl Indexed {
    /// True for a service whose applications are identified by user keys.
    fn is_of_user_keys(&self) -> bool {
        self.service.backend_version.as_deref() == Some("1")
    }

    fn is_of_oauth(&self) -> bool {
        self.service.backend_version.as_deref() == Some("oauth")
    }
}

impl Verdict<'_> {
    /// Looks at everything that is asked before limits. The first reason for a refusal counts.
    fn refusal_before_limits(&mut self, params: &Params) -> Result<(), Fault> {
        let application = self.application;
        // An empty key is one that is not valid, where a missing one may be.
        let key = text(params, "app_key").map(str::trim);
        let invalid = || Err(Fault::ApplicationKeyInvalid(key.filter(|key| !key.is_empty()).map(str::to_owned)));
        let is_known = key.is_some_and(|key| application.keys.contains(key));
        if self.kind.is_oauth && !self.service.is_of_oauth() {
            return Err(Fault::OauthNotEnabled);
        }
        if self.service.is_of_oauth() {
            if key.is_some() && !is_known {
                return invalid();
            }
        } else if !self.service.is_of_user_keys() && !application.keys.is_empty() && !is_known {
            return invalid();
        }
        if self.kind.is_oauth {
            self.check_redirect(params)?;
        }
        self.check_referrer(params)?;
        if application.state.as_deref() != Some("active") {
            return Err(Fault::ApplicationNotActive);
        }
        if self.service.service.is_suspended { Err(Fault::ServiceNotActive) } else { Ok(()) }
    }

    fn check_redirect(&mut self, params: &Params) -> Result<(), Fault> {
        let known = self.application.redirect_url.as_deref();
        let (name, invalid): (_, fn(String) -> Fault) = match params.contains_key("redirect_url") {
            true => ("redirect_url", Fault::RedirectUrlInvalid),
            false => ("redirect_uri", Fault::RedirectUriInvalid),
        };
        self.says_uri = name == "redirect_uri" && params.contains_key(name);
        match text(params, name).filter(|given| !given.is_empty() && Some(*given) != known) {
            Some(given) => Err(invalid(given.to_owned())),
            None => Ok(()),
        }
    }

    fn check_referrer(&self, params: &Params) -> Result<(), Fault> {
        let filters = &self.application.referrer_filters;
        if !self.service.service.referrer_filters_required || filters.is_empty() {
            return Ok(());
        }
        let given = text(params, "referrer");
        let fits = given.is_some_and(|given| given == "*" || filters.iter().any(|filter| matches(filter, given)));
        if fits {
            return Ok(());
        }
        Err(Fault::ReferrerNotAllowed(given.filter(|given| !given.trim().is_empty()).map(str::to_owned)))
    }

    /// With usage, the limits of the metrics in it have to be kept; without any, all of them.
    fn is_within_limits(&self) -> bool {
        self.used.iter().all(|used| match &self.usage {
            None => used.count <= used.max,
            Some(usage) => usage.of(used.metric).is_none_or(|amount| amount.applied_to(used.count) <= used.max),
        })
    }

    /// Use of a limit, with this call if it has counted.
    pub(crate) fn count_after(&self, used: &Used) -> u64 {
        let counted = self.usage.as_ref().filter(|_| self.kind.reports && self.refusal.is_none());
        let amount = counted.and_then(|usage| usage.of(used.metric));
        amount.map_or(used.count, |amount| amount.applied_to(used.count))
    }
}

/// True if a referrer fits a filter, in which `*` stands for any text.
fn matches(filter: &str, referrer: &str) -> bool {
    let mut parts = filter.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = referrer.strip_prefix(first) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = rest.get(at + part.len()..).unwrap_or_default();
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn filters_of_referrers() {
        for (filter, referrer, fits) in [
            ("example.org", "example.org", true),
            ("example.org", "exampleXorg", false),
            ("example.org", "example.org.net", false),
            ("*.example.org", "a.b.example.org", true),
            ("*.example.org", "example.org", false),
            ("a*b*c", "aXbYc", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("*", "", true),
            ("*", "anything", true),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(matches(filter, referrer), fits, "{filter} {referrer}");
        }
    }
}
