//! Messages of Tyk's protocol for middleware over gRPC (package `coprocess`: coprocess_object.proto and what it imports).

use std::collections::BTreeMap;

use prost::Message;

/// The request with all that belongs to it, there and back.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Object {
    #[prost(enumeration = "HookType", tag = "1")]
    pub(super) hook_type: i32,
    /// Name of the function.
    #[prost(string, tag = "2")]
    pub(super) hook_name: String,
    #[prost(message, optional, tag = "3")]
    pub(super) request: Option<MiniRequest>,
    #[prost(message, optional, tag = "4")]
    pub(super) session: Option<SessionState>,
    /// The same as in the session.
    #[prost(btree_map = "string, string", tag = "5")]
    pub(super) metadata: BTreeMap<String, String>,
    /// `OrgID`, `APIID` and `config_data`.
    #[prost(btree_map = "string, string", tag = "6")]
    pub(super) spec: BTreeMap<String, String>,
    /// The answer, for functions that change it.
    #[prost(message, optional, tag = "7")]
    pub(super) response: Option<ResponseObject>,
}

/// An answer, there and back.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ResponseObject {
    #[prost(int32, tag = "1")]
    pub(super) status_code: i32,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) raw_body: Vec<u8>,
    /// The body where it is text.
    #[prost(string, tag = "3")]
    pub(super) body: String,
    /// Of several values the first.
    #[prost(btree_map = "string, string", tag = "4")]
    pub(super) headers: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "5")]
    pub(super) multivalue_headers: Vec<Header>,
}

/// A header with all of its values.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) values: Vec<String>,
}

/// Place of a hook in the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(super) enum HookType {
    Unknown = 0,
    Pre = 1,
    Post = 2,
    PostKeyAuth = 3,
    CustomKeyCheck = 4,
    Response = 5,
}

/// A request, and changes to it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct MiniRequest {
    #[prost(btree_map = "string, string", tag = "1")]
    pub(super) headers: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "2")]
    pub(super) set_headers: BTreeMap<String, String>,
    #[prost(string, repeated, tag = "3")]
    pub(super) delete_headers: Vec<String>,
    /// The body where it is text.
    #[prost(string, tag = "4")]
    pub(super) body: String,
    #[prost(string, tag = "5")]
    pub(super) url: String,
    #[prost(btree_map = "string, string", tag = "6")]
    pub(super) params: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "7")]
    pub(super) add_params: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "8")]
    pub(super) extended_params: BTreeMap<String, String>,
    #[prost(string, repeated, tag = "9")]
    pub(super) delete_params: Vec<String>,
    #[prost(message, optional, tag = "10")]
    pub(super) return_overrides: Option<ReturnOverrides>,
    #[prost(string, tag = "11")]
    pub(super) method: String,
    #[prost(string, tag = "12")]
    pub(super) request_uri: String,
    #[prost(string, tag = "13")]
    pub(super) scheme: String,
    #[prost(bytes = "vec", tag = "14")]
    pub(super) raw_body: Vec<u8>,
}

/// An answer in place of the upstream's.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ReturnOverrides {
    /// The status; 0 or less: there is no such answer.
    #[prost(int32, tag = "1")]
    pub(super) response_code: i32,
    #[prost(string, tag = "2")]
    pub(super) response_error: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub(super) headers: BTreeMap<String, String>,
    #[prost(bool, tag = "4")]
    pub(super) override_error: bool,
    #[prost(string, tag = "5")]
    pub(super) response_body: String,
}

/// A session.
#[derive(Clone, PartialEq, Message)]
pub(super) struct SessionState {
    #[prost(int64, tag = "1")]
    pub(super) last_check: i64,
    #[prost(double, tag = "2")]
    pub(super) allowance: f64,
    #[prost(double, tag = "3")]
    pub(super) rate: f64,
    /// Seconds.
    #[prost(double, tag = "4")]
    pub(super) per: f64,
    #[prost(int64, tag = "5")]
    pub(super) expires: i64,
    #[prost(int64, tag = "6")]
    pub(super) quota_max: i64,
    #[prost(int64, tag = "7")]
    pub(super) quota_renews: i64,
    #[prost(int64, tag = "8")]
    pub(super) quota_remaining: i64,
    #[prost(int64, tag = "9")]
    pub(super) quota_renewal_rate: i64,
    #[prost(btree_map = "string, message", tag = "10")]
    pub(super) access_rights: BTreeMap<String, AccessDefinition>,
    #[prost(string, tag = "11")]
    pub(super) org_id: String,
    #[prost(string, tag = "12")]
    pub(super) oauth_client_id: String,
    #[prost(btree_map = "string, string", tag = "13")]
    pub(super) oauth_keys: BTreeMap<String, String>,
    #[prost(bool, tag = "16")]
    pub(super) hmac_enabled: bool,
    #[prost(bool, tag = "18")]
    pub(super) is_inactive: bool,
    #[prost(string, tag = "19")]
    pub(super) apply_policy_id: String,
    #[prost(int64, tag = "20")]
    pub(super) data_expires: i64,
    #[prost(btree_map = "string, string", tag = "23")]
    pub(super) metadata: BTreeMap<String, String>,
    #[prost(string, repeated, tag = "24")]
    pub(super) tags: Vec<String>,
    #[prost(string, tag = "25")]
    pub(super) alias: String,
    #[prost(string, tag = "26")]
    pub(super) last_updated: String,
    #[prost(int64, tag = "27")]
    pub(super) id_extractor_deadline: i64,
    #[prost(int64, tag = "28")]
    pub(super) session_lifetime: i64,
    #[prost(string, repeated, tag = "29")]
    pub(super) apply_policies: Vec<String>,
    #[prost(string, tag = "32")]
    pub(super) key_id: String,
}

/// Rights to one API.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AccessDefinition {
    #[prost(string, tag = "1")]
    pub(super) api_name: String,
    #[prost(string, tag = "2")]
    pub(super) api_id: String,
    #[prost(string, repeated, tag = "3")]
    pub(super) versions: Vec<String>,
    #[prost(message, repeated, tag = "4")]
    pub(super) allowed_urls: Vec<AccessSpec>,
}

/// An endpoint that may be called.
#[derive(Clone, PartialEq, Message)]
pub(super) struct AccessSpec {
    #[prost(string, tag = "1")]
    pub(super) url: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) methods: Vec<String>,
}
