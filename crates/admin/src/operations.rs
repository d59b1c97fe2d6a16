//! Everything of the API that is no plain resource, in one table: requests are dispatched by it, and the OpenAPI document
//! is written from it.

use hyper::Method;

/// An operation.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) method: Method,
    /// The path; `{name}` stands for one segment, `{key}` at the end for all that follow.
    pub(crate) path: &'static str,
    pub(crate) what: What,
    pub(crate) summary: &'static str,
    /// Arguments behind `?`, and what they mean.
    pub(crate) query: &'static [(&'static str, &'static str)],
    pub(crate) body: Takes,
    /// Statuses beside those of every request, and what they mean.
    pub(crate) answers: &'static [(u16, &'static str)],
}

/// Handler of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    PluginNames,
    PluginSchemas,
    PluginSchema,
    ReloadPlugins,
    ResourceSchema,
    ValidateResource,
    Configs,
    ReplaceConfigs,
    ValidateConfigs,
    Resources,
    Resource,
    PutResource,
    DeleteResource,
    Transaction,
    History,
    Difference,
    Rollback,
    Events,
    Explain,
    SendForReal,
    Usage,
    Keys,
    IssueKey,
    ChangeKey,
    RevokeKey,
    Products,
    ProductDocuments,
    Quotas,
    ResetQuotas,
    Identity,
    Audit,
    Developers,
    AddDeveloper,
    ChangeDeveloper,
    RemoveDeveloper,
    Applications,
    AddApplication,
    ChangeApplication,
    RemoveApplication,
    Own,
    OwnApplications,
    AddOwnApplication,
    ChangeOwnApplication,
    RemoveOwnApplication,
    AddOwnKey,
    ChangeOwnKey,
    RemoveOwnKey,
    OwnUsage,
    OwnQuotas,
    OwnDocuments,
    OpenApi,
    Session,
    Login,
    Logout,
    BeginLogin,
    FinishLogin,
    About,
    Live,
    Requests,
    References,
    Problems,
    Plugins,
    Tyk,
    ThreescaleApplications,
}

/// Content of the body of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    Nothing,
    /// A resource of the kind that the path names.
    Resource,
    /// A whole configuration, as in a rules file.
    Configs,
    Transaction,
    Rollback,
    NewKey,
    KeyChange,
    Login,
    OwnRequest,
    NewDeveloper,
    DeveloperChange,
    NewApplication,
    ApplicationChange,
    NewOwnApplication,
    NewOwnKey,
    OwnKeyChange,
}

const DRY_RUN: (&str, &str) = ("dry_run", "true: everything is checked and nothing is changed");
const NOT_IT: (u16, &str) = (412, "the resource is not in the state that If-Match or If-None-Match asks for");
const INVALID: (u16, &str) = (400, "the configuration would be invalid: all findings are in `diagnostics`");
const NOT_WRITTEN: (u16, &str) = (503, "the store cannot be written to");

/// All of them.
#[rustfmt::skip]
pub(crate) const OPERATIONS: &[Operation] = &[
    operation(Method::GET, "/apisix/admin/plugins/list", What::PluginNames, "Names of all plugins, those that run first first",
        &[("subsystem", "`http` or `stream`")], Takes::Nothing, &[]),
    operation(Method::PUT, "/apisix/admin/plugins/reload", What::ReloadPlugins, "Does nothing: all plugins are part of the program",
        &[], Takes::Nothing, &[]),
    operation(Method::GET, "/apisix/admin/plugins", What::PluginSchemas, "Everything about every plugin",
        &[("all", "`true`, which is needed"), ("subsystem", "`http` or `stream`")], Takes::Nothing, &[]),
    operation(Method::GET, "/apisix/admin/plugins/{name}", What::PluginSchema, "The schema of a plugin's configuration",
        &[("schema_type", "`consumer`: of its configuration on a consumer; `metadata`: of its plugin_metadata"), ("subsystem", "`http` or `stream`")],
        Takes::Nothing, &[(404, "there is no such plugin")]),
    operation(Method::GET, "/apisix/admin/schema/{resource}", What::ResourceSchema, "The schema of a kind of resource, such as `route`",
        &[], Takes::Nothing, &[(400, "there is no such kind")]),
    operation(Method::GET, "/apisix/admin/schema/plugins/{name}", What::PluginSchema, "The schema of a plugin's configuration",
        &[("schema_type", "`consumer` or `metadata`")], Takes::Nothing, &[(404, "there is no such plugin")]),
    operation(Method::POST, "/apisix/admin/schema/validate/{resource}", What::ValidateResource,
        "Checks a resource, such as one of `routes`, but not whether what it refers to exists",
        &[], Takes::Resource, &[(400, "it is invalid")]),
    operation(Method::GET, "/apisix/admin/configs", What::Configs, "The whole configuration, with its digest and versions",
        &[], Takes::Nothing, &[]),
    operation(Method::PUT, "/apisix/admin/configs", What::ReplaceConfigs, "Replaces the whole configuration; needs X-Digest",
        &[("wait", "milliseconds; with any above 0 the answer is 200")], Takes::Configs, &[(202, "it is live"), (204, "the digest is that of what is live: nothing was done"), (400, "it is invalid, or older than what is live"), NOT_WRITTEN]),
    operation(Method::POST, "/apisix/admin/configs/validate", What::ValidateConfigs, "Checks a whole configuration",
        &[], Takes::Configs, &[(400, "it is invalid: all findings are in `errors`")]),

    operation(Method::GET, "/weir/v1/resources", What::Resources, "All resources, with the revisions that made and changed them",
        &[("kind", "only those of a kind, such as `routes`"), ("q", "only those in whose key or text all these words stand, in any case"),
          ("page", "the page, from 1; together with page_size"), ("page_size", "resources on a page: 1 to 500"),
          ("sort", "`key` or `modified`, which begins with the latest; for pages")], Takes::Nothing, &[(400, "an argument is wrong")]),
    operation(Method::GET, "/weir/v1/resources/{key}", What::Resource, "A resource; ETag is the revision that changed it last",
        &[], Takes::Nothing, &[(304, "it is the one that If-None-Match names"), (404, "there is no such resource")]),
    operation(Method::PUT, "/weir/v1/resources/{key}", What::PutResource, "Makes or replaces a resource, under the conditions of If-Match and If-None-Match",
        &[DRY_RUN], Takes::Resource, &[(201, "it was made"), INVALID, NOT_IT, NOT_WRITTEN]),
    operation(Method::DELETE, "/weir/v1/resources/{key}", What::DeleteResource, "Deletes a resource, under the condition of If-Match",
        &[DRY_RUN], Takes::Nothing, &[INVALID, (404, "there is no such resource"), NOT_IT, NOT_WRITTEN]),
    operation(Method::POST, "/weir/v1/transactions", What::Transaction, "Makes several changes as one: all of them or none",
        &[DRY_RUN], Takes::Transaction, &[INVALID, NOT_IT, NOT_WRITTEN]),
    operation(Method::GET, "/weir/v1/history", What::History, "The commits that are remembered, the latest first",
        &[("before", "only those of earlier revisions"), ("key", "only those that changed this resource, such as `routes/1`"), ("limit", "so many at most: 1 to 1000, 100 unless told")],
        Takes::Nothing, &[]),
    operation(Method::GET, "/weir/v1/diff", What::Difference, "What is different between two revisions",
        &[("from", "a revision"), ("to", "a revision; the current one unless told")], Takes::Nothing, &[]),
    operation(Method::POST, "/weir/v1/rollback", What::Rollback, "Makes everything as it was at a revision, with a new revision",
        &[DRY_RUN], Takes::Rollback, &[INVALID, NOT_IT, NOT_WRITTEN]),
    operation(Method::GET, "/weir/v1/events", What::Events, "Changes as they are made, as server-sent events",
        &[("after", "the revision after which they begin; the current one unless told. Last-Event-ID goes before it")],
        Takes::Nothing, &[(503, "too many such streams are open")]),
    operation(Method::GET, "/weir/v1/explain", What::Explain, "What would become of a request now",
        &[("request", "the method and the URL: `GET http://example.com/a`"), ("header", "a field, `NAME: VALUE`; may stand several times"), ("remote", "the client's address, 127.0.0.1 unless told")],
        Takes::Nothing, &[(400, "that is no request")]),
    operation(Method::POST, "/weir/v1/explain", What::SendForReal, "Sends a request to this gateway itself, and tells the answer with the time of each phase; for administrators",
        &[], Takes::OwnRequest, &[(400, "that is no request, or the gateway has no listener that it can be sent to")]),
    operation(Method::GET, "/weir/v1/usage", What::Usage, "Who has called what: sums of requests, errors, bytes and latency, as a table or by time",
        weir_usage::QUESTIONS, Takes::Nothing, &[(400, "the question is wrong"), (404, "usage is not recorded"), (503, "usage cannot be read")]),
    operation(Method::GET, "/weir/v1/products", What::Products, "APIs with their routes, and the plans on which they may be called",
        &[("plan", "only those that this plan includes"), ("team", "only those with this label `team`")], Takes::Nothing, &[NOT_WRITTEN]),
    operation(Method::GET, "/weir/v1/products/{id}/openapi", What::ProductDocuments, "The OpenAPI documents of an API: those that its service and its routes have with oas-validator",
        &[], Takes::Nothing, &[(404, "there is no such API")]),
    operation(Method::GET, "/weir/v1/quotas", What::Quotas, "What a consumer, or one of its keys, has used of the limits of its plans, as this gateway counts",
        &[("consumer", "the consumer, which is needed"), ("key", "the id of one of its keys")], Takes::Nothing,
        &[(404, "there is no such consumer or key, or counts are in a Redis"), NOT_WRITTEN]),
    operation(Method::DELETE, "/weir/v1/quotas", What::ResetQuotas, "Begins these counts anew",
        &[("consumer", "the consumer, which is needed"), ("key", "the id of one of its keys")], Takes::Nothing,
        &[(404, "there is no such consumer or key, or counts are in a Redis"), NOT_WRITTEN]),
    operation(Method::GET, "/weir/v1/identity", What::Identity, "Name, role and team of the key that asks",
        &[], Takes::Nothing, &[]),
    operation(Method::GET, "/weir/v1/audit", What::Audit, "Who has changed what, the latest first",
        &[("actor", "only changes by this name"), ("kind", "only changes of a kind, such as `plans`"), ("key", "only changes of this resource, such as `plans/gold`"),
          ("before", "only those of earlier revisions"), ("limit", "so many at most: 1 to 1000, 100 unless told")],
        Takes::Nothing, &[]),
    operation(Method::GET, "/weir/v1/developers", What::Developers, "Developers, without what opens anything",
        &[("team", "only those with this label `team`")], Takes::Nothing, &[NOT_WRITTEN]),
    operation(Method::POST, "/weir/v1/developers", What::AddDeveloper, "Adds a developer. The answer alone shows the token",
        &[DRY_RUN], Takes::NewDeveloper, &[(201, "it was made"), INVALID, NOT_IT, NOT_WRITTEN]),
    operation(Method::PATCH, "/weir/v1/developers/{id}", What::ChangeDeveloper, "Changes a developer, or renews the token: the answer alone shows the new one",
        &[DRY_RUN], Takes::DeveloperChange, &[INVALID, (404, "there is no such developer"), NOT_IT, NOT_WRITTEN]),
    operation(Method::DELETE, "/weir/v1/developers/{id}", What::RemoveDeveloper, "Removes a developer, with the applications and their keys",
        &[DRY_RUN], Takes::Nothing, &[INVALID, (404, "there is no such developer"), NOT_IT, NOT_WRITTEN]),
    operation(Method::GET, "/weir/v1/applications", What::Applications, "Applications of developers, with their plans",
        &[("developer", "only those of this developer"), ("team", "only those with this label `team`")], Takes::Nothing, &[NOT_WRITTEN]),
    operation(Method::POST, "/weir/v1/applications", What::AddApplication, "Makes an application for a developer, on any plans",
        &[DRY_RUN], Takes::NewApplication, &[(201, "it was made"), INVALID, (404, "there is no such developer"), NOT_IT, NOT_WRITTEN]),
    operation(Method::PATCH, "/weir/v1/applications/{id}", What::ChangeApplication, "Puts an application on other plans, describes or suspends it",
        &[DRY_RUN], Takes::ApplicationChange, &[INVALID, (404, "there is no such application"), NOT_IT, NOT_WRITTEN]),
    operation(Method::DELETE, "/weir/v1/applications/{id}", What::RemoveApplication, "Removes an application with its keys",
        &[DRY_RUN], Takes::Nothing, &[INVALID, (404, "there is no such application"), NOT_IT, NOT_WRITTEN]),
    operation(Method::GET, "/weir/v1/self", What::Own, "The developer that asks, and the APIs and plans that are open to the applications",
        &[], Takes::Nothing, &[]),
    operation(Method::GET, "/weir/v1/self/applications", What::OwnApplications, "The developer's applications, with their keys",
        &[], Takes::Nothing, &[]),
    operation(Method::POST, "/weir/v1/self/applications", What::AddOwnApplication, "Makes an application, on plans that are open to the developer",
        &[DRY_RUN], Takes::NewOwnApplication, &[(201, "it was made"), INVALID, NOT_IT, NOT_WRITTEN]),
    operation(Method::PATCH, "/weir/v1/self/applications/{id}", What::ChangeOwnApplication, "Puts an application on other plans that are open to the developer, or describes it",
        &[DRY_RUN], Takes::NewOwnApplication, &[INVALID, (404, "there is no such application"), NOT_IT, NOT_WRITTEN]),
    operation(Method::DELETE, "/weir/v1/self/applications/{id}", What::RemoveOwnApplication, "Removes an application with its keys",
        &[DRY_RUN], Takes::Nothing, &[INVALID, (404, "there is no such application"), NOT_IT, NOT_WRITTEN]),
    operation(Method::POST, "/weir/v1/self/applications/{id}/keys", What::AddOwnKey, "Makes a key for an application. The answer alone shows it",
        &[DRY_RUN], Takes::NewOwnKey, &[(201, "it was made"), INVALID, (404, "there is no such application"), NOT_IT, NOT_WRITTEN]),
    operation(Method::PATCH, "/weir/v1/self/applications/{id}/keys/{key_id}", What::ChangeOwnKey, "Renews a key: the answer alone shows the new one",
        &[DRY_RUN], Takes::OwnKeyChange, &[INVALID, (404, "there is no such key"), NOT_IT, NOT_WRITTEN]),
    operation(Method::DELETE, "/weir/v1/self/applications/{id}/keys/{key_id}", What::RemoveOwnKey, "Takes a key back",
        &[DRY_RUN], Takes::Nothing, &[INVALID, (404, "there is no such key"), NOT_IT, NOT_WRITTEN]),
    operation(Method::GET, "/weir/v1/self/usage", What::OwnUsage, "Usage of the developer's applications, by the arguments of /weir/v1/usage",
        weir_usage::QUESTIONS, Takes::Nothing, &[(400, "the question is wrong"), (404, "usage is not recorded"), (503, "usage cannot be read")]),
    operation(Method::GET, "/weir/v1/self/quotas", What::OwnQuotas, "What the developer's applications have used of the limits of their plans, as this gateway counts",
        &[], Takes::Nothing, &[(404, "counts are in a Redis")]),
    operation(Method::GET, "/weir/v1/self/products/{id}/openapi", What::OwnDocuments, "The OpenAPI documents of an API that is open to the developer",
        &[], Takes::Nothing, &[(404, "there is no such API")]),
    operation(Method::GET, "/weir/v1/keys", What::Keys, "Keys of callers, that is credentials, without what opens anything",
        &[("consumer", "only those of this consumer")], Takes::Nothing, &[NOT_WRITTEN]),
    operation(Method::POST, "/weir/v1/keys", What::IssueKey, "Makes a key for a consumer. The answer alone shows it",
        &[DRY_RUN], Takes::NewKey, &[(201, "it was made"), INVALID, (404, "there is no such consumer"), NOT_IT, NOT_WRITTEN]),
    operation(Method::PATCH, "/weir/v1/keys/{consumer}/{id}", What::ChangeKey, "Puts a key on other plans, suspends it, or renews it: the answer alone shows the new one",
        &[DRY_RUN], Takes::KeyChange, &[INVALID, (404, "there is no such key"), NOT_IT, NOT_WRITTEN]),
    operation(Method::DELETE, "/weir/v1/keys/{consumer}/{id}", What::RevokeKey, "Takes a key back",
        &[DRY_RUN], Takes::Nothing, &[INVALID, (404, "there is no such key"), NOT_IT, NOT_WRITTEN]),
    operation(Method::GET, "/weir/v1/session", What::Session, "The session of a browser: who it is, and the token that changes need; asks for no key",
        &[], Takes::Nothing, &[]),
    operation(Method::POST, "/weir/v1/session", What::Login, "Begins a session with a key: the answer sets a cookie that stands for the key",
        &[], Takes::Login, &[(401, "the key opens nothing")]),
    operation(Method::GET, "/weir/v1/session/oidc", What::BeginLogin, "Sends a browser to the identity provider of the dashboard; asks for no key",
        &[], Takes::Nothing, &[(302, "to the provider"), (404, "no identity provider is set"), (502, "the provider cannot be asked")]),
    operation(Method::GET, "/weir/v1/session/oidc/callback", What::FinishLogin, "Ends a login by the identity provider: the answer sets the cookie of a session",
        &[("state", "the state of the login"), ("code", "the code of the provider"), ("error", "the reason why the provider lets nobody in")],
        Takes::Nothing, &[(302, "to the dashboard"), (403, "nobody is let in"), (404, "no identity provider is set")]),
    operation(Method::DELETE, "/weir/v1/session", What::Logout, "Ends the session", &[], Takes::Nothing, &[]),
    operation(Method::GET, "/weir/v1/about", What::About, "This gateway: version, start, rights of the key, whether the configuration can be changed, and the number of resources of each kind",
        &[], Takes::Nothing, &[]),
    operation(Method::GET, "/weir/v1/live", What::Live, "Figures of each second as server-sent events, after those of the last hour",
        &[], Takes::Nothing, &[(404, "figures are not taken"), (503, "too many such streams are open")]),
    operation(Method::GET, "/weir/v1/requests", What::Requests, "Samples of requests as they end, as server-sent events",
        &[("status", "only this status, or this class, such as `5xx`"), ("method", "only this method"), ("route", "only this route"), ("consumer", "only this consumer"), ("host", "only hosts with this text"), ("path", "only paths with this text"), ("slower_ms", "only those that took longer")],
        Takes::Nothing, &[(400, "an argument is wrong"), (404, "figures are not taken"), (503, "too many such streams are open")]),
    operation(Method::GET, "/weir/v1/references", What::References, "Resources that refer to a resource",
        &[("key", "the resource, such as `upstreams/1`")], Takes::Nothing, &[(400, "that is no key")]),
    operation(Method::GET, "/weir/v1/problems", What::Problems, "Everything that needs somebody's attention, and what to do about it",
        &[], Takes::Nothing, &[]),
    operation(Method::GET, "/weir/v1/plugins", What::Plugins, "All plugins with their documentation and an example each",
        &[], Takes::Nothing, &[]),
    operation(Method::GET, "/weir/v1/tyk/{key}", What::Tyk, "APIs, policies and keys of Tyk's family, as Tyk's gateway API tells them: `apis`, `policies/gold`, `keys`; `reload` reads the files again",
        &[("block", "`true`: a reload is answered when it is done"), ("hashed", "`true`: the key is named by its hash")],
        Takes::Nothing, &[(404, "there is no such resource, or no gateway API of Tyk")]),
    operation(Method::POST, "/weir/v1/tyk/{key}", What::Tyk, "Makes an API, a policy or a key", &[], Takes::Resource, &[(404, "there is no gateway API of Tyk")]),
    operation(Method::PUT, "/weir/v1/tyk/{key}", What::Tyk, "Changes an API, a policy or a key",
        &[("hashed", "`true`: the key is named by its hash")], Takes::Resource, &[(404, "there is no such resource, or no gateway API of Tyk")]),
    operation(Method::DELETE, "/weir/v1/tyk/{key}", What::Tyk, "Deletes an API, a policy or a key",
        &[("hashed", "`true`: the key is named by its hash")], Takes::Nothing, &[(404, "there is no such resource, or no gateway API of Tyk")]),
    operation(Method::GET, "/weir/v1/threescale/applications", What::ThreescaleApplications, "Applications of the gateway's own backend of 3scale, with what is used of their limits; their keys are counted and not shown",
        &[("q", "only those with this text in their ids, plans or states"), ("service", "only those of this service"), ("page", "the page, from 1"), ("page_size", "applications on a page: 1 to 500")],
        Takes::Nothing, &[(404, "there is no backend of 3scale")]),
    operation(Method::GET, "/weir/v1/openapi.json", What::OpenApi, "This document", &[], Takes::Nothing, &[]),
];

const fn operation(
    method: Method,
    path: &'static str,
    what: What,
    summary: &'static str,
    query: &'static [(&'static str, &'static str)],
    body: Takes,
    answers: &'static [(u16, &'static str)],
) -> Operation {
    Operation { method, path, what, summary, query, body, answers }
}

/// Result of looking for the operation of a path.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found<'a> {
    /// To this operation, with what stands in the place of its `{…}`.
    Operation(What, &'a [String]),
    /// To operations with other methods.
    WrongMethod(Vec<&'static Method>),
    /// To none of these.
    Nothing,
}

/// Finds the operation of a request. HEAD is taken for GET. A path that one has word by word is no other's.
pub(crate) fn find<'a>(method: &Method, path: &'a [String]) -> Found<'a> {
    let mut others = Vec::new();
    let mut literal = false;
    for operation in OPERATIONS {
        let Some(rest) = operation.matches(path) else { continue };
        if literal && !rest.is_empty() {
            continue;
        }
        literal |= rest.is_empty();
        if operation.method == *method || (*method == Method::HEAD && operation.method == Method::GET) {
            return Found::Operation(operation.what, rest);
        }
        others.push(&operation.method);
    }
    if others.is_empty() { Found::Nothing } else { Found::WrongMethod(others) }
}

impl What {
    /// True for an operation that needs resources in a store.
    pub(crate) const fn is_of_a_store(self) -> bool {
        matches!(
            self,
            Self::Resources
                | Self::Resource
                | Self::PutResource
                | Self::DeleteResource
                | Self::Transaction
                | Self::History
                | Self::Difference
                | Self::Rollback
                | Self::Events
                | Self::Keys
                | Self::IssueKey
                | Self::ChangeKey
                | Self::RevokeKey
                | Self::Products
                | Self::ProductDocuments
                | Self::References
                | Self::Audit
                | Self::Developers
                | Self::AddDeveloper
                | Self::ChangeDeveloper
                | Self::RemoveDeveloper
                | Self::Applications
                | Self::AddApplication
                | Self::ChangeApplication
                | Self::RemoveApplication
                | Self::Own
                | Self::OwnApplications
                | Self::AddOwnApplication
                | Self::ChangeOwnApplication
                | Self::RemoveOwnApplication
                | Self::AddOwnKey
                | Self::ChangeOwnKey
                | Self::RemoveOwnKey
                | Self::OwnUsage
                | Self::OwnQuotas
                | Self::OwnDocuments
                | Self::Quotas
                | Self::ResetQuotas
        )
    }
}

impl What {
    /// True for an operation that tells of the gateway, whatever its resources look like.
    pub(crate) const fn is_of_the_gateway(self) -> bool {
        matches!(
            self,
            Self::About
                | Self::Live
                | Self::Requests
                | Self::Problems
                | Self::Explain
                | Self::SendForReal
                | Self::Usage
                | Self::ThreescaleApplications
        )
    }
}

impl Operation {
    /// Segments of a path in the place of the parameters, if the path is one of this operation.
    fn matches<'a>(&self, path: &'a [String]) -> Option<&'a [String]> {
        let wanted: Vec<&str> = self.path.split('/').skip(1).collect();
        let fixed = wanted.iter().take_while(|segment| !segment.starts_with('{')).count();
        if path.len() < fixed || wanted.iter().zip(path).take(fixed).any(|(wanted, found)| wanted != found) {
            return None;
        }
        let rest = &path[fixed..];
        let fits = match wanted.get(fixed..) {
            Some(["{key}"]) => !rest.is_empty(),
            more => {
                let more = more.unwrap_or_default();
                let is_same = |(wanted, found): (&&str, &String)| wanted.starts_with('{') || **wanted == **found;
                rest.len() == more.len() && more.iter().zip(rest).all(is_same)
            }
        };
        fits.then_some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, Method, OPERATIONS, What, find};

    #[test]
    fn requests_find_their_operation() {
        type Case<'a> = (Method, &'a str, Option<(What, &'a [&'a str])>);
        let cases: &[Case<'_>] = &[
            (Method::GET, "apisix/admin/plugins/list", Some((What::PluginNames, &[]))),
            (Method::HEAD, "apisix/admin/configs", Some((What::Configs, &[]))),
            (Method::GET, "apisix/admin/plugins/key-auth", Some((What::PluginSchema, &["key-auth"]))),
            (Method::GET, "apisix/admin/schema/route", Some((What::ResourceSchema, &["route"]))),
            (Method::GET, "apisix/admin/schema/plugins/cors", Some((What::PluginSchema, &["cors"]))),
            (Method::POST, "apisix/admin/schema/validate/routes", Some((What::ValidateResource, &["routes"]))),
            (
                Method::PUT,
                "weir/v1/resources/consumers/j/credentials/c",
                Some((What::PutResource, &["consumers", "j", "credentials", "c"])),
            ),
            (Method::GET, "weir/v1/resources", Some((What::Resources, &[]))),
            (Method::POST, "weir/v1/self/applications/a/keys", Some((What::AddOwnKey, &["a", "keys"]))),
            (Method::DELETE, "weir/v1/self/applications/a/keys/k", Some((What::RemoveOwnKey, &["a", "keys", "k"]))),
            (Method::POST, "weir/v1/self/applications/a/other", None),
            (Method::GET, "apisix/admin/routes", None),
            (Method::GET, "weir/v1", None),
            (Method::GET, "weir/v1/nothing", None),
        ];
        for (method, path, expected) in cases {
            let segments: Vec<String> = path.split('/').map(str::to_owned).collect();
            match (find(method, &segments), expected) {
                (Found::Operation(what, rest), Some((wanted, parts))) => {
                    assert_eq!(what, *wanted, "{method} {path}");
                    assert_eq!(rest, *parts, "{method} {path}");
                }
                (found, None) => assert_eq!(found, Found::Nothing, "{method} {path}"),
                (found, _) => panic!("{method} {path}: {found:?}"),
            }
        }
        let path = ["weir", "v1", "transactions"].map(str::to_owned);
        assert_eq!(find(&Method::GET, &path), Found::WrongMethod(vec![&Method::POST]));
        let path = ["apisix", "admin", "plugins", "reload"].map(str::to_owned);
        assert_eq!(find(&Method::GET, &path), Found::WrongMethod(vec![&Method::PUT]), "reload is no plugin");
    }

    #[test]
    fn no_operation_hides_another() {
        for operation in OPERATIONS {
            let path: Vec<String> = operation.path.split('/').skip(1).map(str::to_owned).collect();
            let Found::Operation(what, _) = find(&operation.method, &path) else { panic!("{}", operation.path) };
            assert_eq!(what, operation.what, "{} {}", operation.method, operation.path);
        }
    }
}
