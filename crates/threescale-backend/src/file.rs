//! The file of services: YAML or JSON, checked whole before any of it counts.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use schemars::JsonSchema;
use serde::Deserialize;
use weir_config::schema::read;
use weir_config::{Code, Diagnostic, Id, Node};

use crate::catalog::Catalog;
use crate::model::{Application, Limit, MOST, Metric, Record, Service, is_in_circle};
use crate::period::Period;

/// The whole file.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct FileForm {
    services: Vec<ServiceForm>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ServiceForm {
    id: Id,
    /// The key of the provider, with which every service of the provider can be asked about.
    #[serde(default)]
    #[schemars(length(min = 1, max = 512))]
    provider_key: Option<String>,
    /// Tokens of gateways.
    #[serde(default)]
    #[schemars(inner(length(min = 1, max = 512)))]
    service_tokens: Vec<String>,
    #[serde(default)]
    backend_version: Version,
    /// The service of calls with the provider key and without a service; the provider's first one unless told.
    #[serde(default)]
    default_service: bool,
    #[serde(default)]
    referrer_filters_required: bool,
    #[serde(default)]
    state: State,
    #[serde(default)]
    metrics: Vec<MetricForm>,
    #[serde(default)]
    plans: Vec<PlanForm>,
    #[serde(default)]
    applications: Vec<ApplicationForm>,
}

/// The way by which a service identifies applications.
#[derive(Debug, Clone, Copy, Default, Deserialize, JsonSchema)]
enum Version {
    /// User keys.
    #[default]
    #[serde(rename = "1")]
    One,
    /// Application ids and keys.
    #[serde(rename = "2")]
    Two,
    /// OpenID Connect.
    #[serde(rename = "oauth")]
    Oauth,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
enum State {
    #[default]
    Active,
    Suspended,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MetricForm {
    /// The name in calls.
    #[schemars(length(min = 1, max = 512))]
    name: String,
    /// The name in counts, which stays when the metric is renamed; the name unless told.
    #[serde(default)]
    id: Option<Id>,
    /// Name of the metric that uses what this one uses.
    #[serde(default)]
    parent: Option<String>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PlanForm {
    id: Id,
    /// The name in answers; the id unless told.
    #[serde(default)]
    name: Option<String>,
    #[serde(default)]
    limits: Vec<LimitForm>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct LimitForm {
    metric: String,
    period: Period,
    #[schemars(range(max = 1_099_511_627_775_u64))]
    value: u64,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ApplicationForm {
    id: Id,
    /// Id of the plan.
    #[serde(default)]
    plan: Option<Id>,
    #[serde(default)]
    state: State,
    /// For a service of version 1.
    #[serde(default)]
    #[schemars(inner(length(min = 1, max = 512)))]
    user_keys: Vec<String>,
    /// For a service of another version: secrets of which a call shows one.
    #[serde(default)]
    #[schemars(inner(length(min = 1, max = 512)))]
    keys: Vec<String>,
    #[serde(default)]
    #[schemars(inner(length(min = 1, max = 512)))]
    referrer_filters: Vec<String>,
    #[serde(default)]
    redirect_url: Option<String>,
}

/// Reads the text of the file.
///
/// # Errors
/// Everything that is wrong in it.
pub fn read_file(text: &str) -> Result<Catalog, Vec<Diagnostic>> {
    let root = Node::parse(text).map_err(|found| vec![found])?.root;
    let form: FileForm = read(&root)?;
    let mut check = Check { root: &root, found: Vec::new() };
    let mut records = Vec::new();
    let (mut ids, mut defaults) = (HashSet::new(), BTreeMap::<String, usize>::new());
    for (place, service) in form.services.iter().enumerate() {
        let path = format!("services[{place}]");
        if !ids.insert(service.id.as_str()) {
            check.fault(&format!("{path}.id"), format!("the service '{}' stands twice", service.id.as_str()));
        }
        if service.provider_key.is_none() && service.service_tokens.is_empty() {
            check.fault(&path, "a service needs a provider_key or service_tokens".to_owned());
        }
        if let Some(key) = service.provider_key.as_ref().filter(|_| service.default_service)
            && let Some(other) = defaults.insert(key.clone(), place)
        {
            let text = format!("services[{other}] is the default service of this provider_key already");
            check.fault(&format!("{path}.default_service"), text);
        }
        check.service(&path, service);
        records.extend(records_of(service));
    }
    if !check.found.is_empty() {
        return Err(check.found);
    }
    settle_defaults(&mut records);
    Ok(Catalog::of(records))
}

/// Makes the first service of each provider without a default service the default one.
fn settle_defaults(records: &mut [Record]) {
    let mut settled: HashSet<String> = HashSet::new();
    for is_given in [true, false] {
        for record in &mut *records {
            let Record::Service(service) = record else { continue };
            let Some(key) = service.provider_key.as_ref().filter(|key| !key.is_empty()) else { continue };
            if (service.is_default || !is_given) && settled.insert(key.clone()) {
                service.is_default = true;
            }
        }
    }
}

/// Findings beyond the schema.
struct Check<'a> {
    root: &'a Node,
    found: Vec<Diagnostic>,
}

impl Check<'_> {
    fn fault(&mut self, path: &str, text: String) {
        let mark = weir_config::node::steps(path).iter().try_fold(self.root, |node, step| match step {
            weir_config::node::Step::Name(name) => node.get(name),
            weir_config::node::Step::Index(index) => node.as_seq()?.get(*index),
        });
        let mark = mark.unwrap_or(self.root).mark;
        self.found.push(Diagnostic::error(mark, path, Code::FamilyRule { text: text.into() }));
    }

    fn service(&mut self, path: &str, service: &ServiceForm) {
        let (mut names, mut ids) = (HashSet::new(), HashSet::new());
        for (place, metric) in service.metrics.iter().enumerate() {
            let path = format!("{path}.metrics[{place}]");
            if !names.insert(metric.name.as_str()) {
                self.fault(&format!("{path}.name"), format!("the metric '{}' stands twice", metric.name));
            } else if !ids.insert(metric.id()) {
                self.fault(&format!("{path}.id"), format!("the id '{}' stands twice", metric.id()));
            }
        }
        let metrics = metrics_of(service);
        for (place, metric) in service.metrics.iter().enumerate() {
            let path = format!("{path}.metrics[{place}].parent");
            match &metric.parent {
                Some(parent) if !names.contains(parent.as_str()) => {
                    self.fault(&path, format!("there is no metric '{parent}'"));
                }
                Some(_) if is_in_circle(&metrics, metric.id()) => {
                    self.fault(&path, "the metric would be above itself".to_owned());
                }
                _ => {}
            }
        }
        let mut plans = HashSet::new();
        for (place, plan) in service.plans.iter().enumerate() {
            let path = format!("{path}.plans[{place}]");
            if !plans.insert(plan.id.as_str()) {
                self.fault(&format!("{path}.id"), format!("the plan '{}' stands twice", plan.id.as_str()));
            }
            let mut limits = HashSet::new();
            for (place, limit) in plan.limits.iter().enumerate() {
                let path = format!("{path}.limits[{place}]");
                if !names.contains(limit.metric.as_str()) {
                    self.fault(&format!("{path}.metric"), format!("there is no metric '{}'", limit.metric));
                }
                if !limits.insert((limit.metric.as_str(), limit.period.name())) {
                    let text = format!("the limit of '{}' per {} stands twice", limit.metric, limit.period.name());
                    self.fault(&path, text);
                }
            }
        }
        self.applications(path, service, &plans);
    }

    fn applications(&mut self, path: &str, service: &ServiceForm, plans: &HashSet<&str>) {
        let (mut ids, mut user_keys) = (HashSet::new(), HashSet::new());
        for (place, application) in service.applications.iter().enumerate() {
            let path = format!("{path}.applications[{place}]");
            let id = application.id.as_str();
            if !ids.insert(id) {
                self.fault(&format!("{path}.id"), format!("the application '{id}' stands twice"));
            }
            if let Some(plan) = application.plan.as_ref().filter(|plan| !plans.contains(plan.as_str())) {
                self.fault(&format!("{path}.plan"), format!("there is no plan '{}'", plan.as_str()));
            }
            for (place, key) in application.user_keys.iter().enumerate() {
                if !user_keys.insert(key.as_str()) {
                    // The key itself is not told: it is a secret.
                    let text = "another application of the service has this key".to_owned();
                    self.fault(&format!("{path}.user_keys[{place}]"), text);
                }
            }
        }
    }
}

impl MetricForm {
    fn id(&self) -> &str {
        self.id.as_ref().map_or(&self.name, Id::as_str)
    }
}

fn metrics_of(service: &ServiceForm) -> Vec<Metric> {
    let id_of = |name: &String| service.metrics.iter().find(|metric| metric.name == *name).map(|m| m.id().to_owned());
    let metric = |metric: &MetricForm| Metric {
        id: metric.id().to_owned(),
        name: metric.name.clone(),
        parent_id: metric.parent.as_ref().and_then(id_of),
    };
    service.metrics.iter().map(metric).collect()
}

/// A service and its applications, as they are stored.
fn records_of(form: &ServiceForm) -> Vec<Record> {
    let metrics = metrics_of(form);
    let metric_id = |name: &str| metrics.iter().find(|metric| metric.name == name).map(|metric| metric.id.clone());
    let limit = |limit: &LimitForm| {
        Some(Limit { metric_id: metric_id(&limit.metric)?, period: limit.period, value: limit.value.min(MOST) })
    };
    let limits = |plan: &PlanForm| (plan.id.as_str().to_owned(), plan.limits.iter().filter_map(limit).collect());
    let version = match form.backend_version {
        Version::One => "1",
        Version::Two => "2",
        Version::Oauth => "oauth",
    };
    let service = Service {
        id: form.id.as_str().to_owned(),
        // A service of which only tokens are told is asked about by tokens alone.
        provider_key: Some(form.provider_key.clone().unwrap_or_default()),
        is_default: form.default_service,
        backend_version: Some(version.to_owned()),
        referrer_filters_required: form.referrer_filters_required,
        is_suspended: form.state == State::Suspended,
        tokens: form.service_tokens.iter().cloned().collect(),
        limits: form.plans.iter().map(limits).collect(),
        metrics: metrics.clone(),
    };
    let application = |application: &ApplicationForm| {
        let plan = form.plans.iter().find(|plan| Some(&plan.id) == application.plan.as_ref());
        Record::Application(Application {
            service_id: service.id.clone(),
            id: application.id.as_str().to_owned(),
            state: Some(if application.state == State::Active { "active" } else { "suspended" }.to_owned()),
            plan_id: plan.map(|plan| plan.id.as_str().to_owned()),
            plan_name: plan.map(|plan| plan.name.clone().unwrap_or_else(|| plan.id.as_str().to_owned())),
            redirect_url: application.redirect_url.clone(),
            user_keys: application.user_keys.iter().cloned().collect::<BTreeSet<_>>(),
            keys: application.keys.iter().cloned().collect(),
            referrer_filters: application.referrer_filters.iter().cloned().collect(),
        })
    };
    let mut records: Vec<Record> = form.applications.iter().map(application).collect();
    records.push(Record::Service(service));
    records
}

#[cfg(test)]
mod tests {
    use super::read_file;

    const FILE: &str = "
services:
  - id: 16
    provider_key: provider
    service_tokens: [token]
    metrics: [{name: hits, id: m1}, {name: search, parent: hits}]
    plans:
      - {id: basic, name: Basic, limits: [{metric: hits, period: minute, value: 5}]}
    applications:
      - {id: a, plan: basic, user_keys: [anna]}
  - {id: 17, provider_key: provider}
  - {id: 18, provider_key: provider, default_service: true}
";

    #[test]
    fn a_file_is_read() {
        let catalog = read_file(FILE).unwrap_or_else(|found| panic!("{found:?}"));
        let service = catalog.service("16").expect("the service");
        let search = service.metric("search").expect("the metric");
        assert_eq!(service.ancestors(search).map(|at| service.metric_id(at)).collect::<Vec<_>>(), ["m1"]);
        assert_eq!(catalog.default_of("provider"), Some("18"));
        assert_eq!(catalog.id_of_user_key("16", "anna"), Some("a"));
        let application = catalog.application("16", "a").expect("the application");
        assert_eq!(application.plan_name.as_deref(), Some("Basic"));
        assert_eq!(service.limits(Some("basic")).len(), 1);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (from, to, expected) in [
            ("id: 17", "id: 16", "services[1].id: the service '16' stands twice"),
            (
                "{id: 17, provider_key: provider}",
                "{id: 17}",
                "services[1]: a service needs a provider_key or service_tokens",
            ),
            (
                "{id: 17, provider_key: provider}",
                "{id: 17, provider_key: provider, default_service: true}",
                "services[2].default_service: services[1] is the default service of this provider_key already",
            ),
            ("parent: hits", "parent: hit", "services[0].metrics[1].parent: there is no metric 'hit'"),
            ("parent: hits", "parent: search", "services[0].metrics[1].parent: the metric would be above itself"),
            ("name: search", "name: hits", "services[0].metrics[1].name: the metric 'hits' stands twice"),
            ("metric: hits", "metric: hit", "services[0].plans[0].limits[0].metric: there is no metric 'hit'"),
            ("period: minute", "period: second", "services[0].plans[0].limits[0].period"),
            ("value: 5", "value: -1", "services[0].plans[0].limits[0].value"),
            ("value: 5", "value: 1099511627776", "services[0].plans[0].limits[0].value"),
            (
                "[{metric: hits, period: minute, value: 5}]",
                "[{metric: hits, period: day, value: 5}, {metric: hits, period: day, value: 6}]",
                "services[0].plans[0].limits[1]: the limit of 'hits' per day stands twice",
            ),
            ("plan: basic", "plan: gold", "services[0].applications[0].plan: there is no plan 'gold'"),
            ("[anna]", "[anna, anna]", "services[0].applications[0].user_keys[1]: another application"),
            ("service_tokens", "service_token", "services[0].service_token: unknown field"),
            ("services:", "service:", "services"),
        ] {
            assert!(FILE.contains(from), "{from}");
            let found = read_file(&FILE.replacen(from, to, 1)).err().unwrap_or_default();
            assert!(found.iter().any(|fault| fault.to_string().contains(expected)), "{expected}: {found:?}");
        }
    }
}
