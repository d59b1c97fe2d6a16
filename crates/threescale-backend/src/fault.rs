//! Errors and refusals of the Service Management API, by their codes.

use std::fmt;

/// An error of a call, or the reason why a call is not authorised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    BadRequest(&'static str),
    ContentTypeInvalid(String),
    TransactionsIsBlank,
    TransactionsFormatInvalid,
    TransactionsHasNilTransaction,
    EndUsersNoLongerSupported,
    NotValidData,
    ProviderKeyOrServiceTokenRequired,
    ProviderKeyInvalid(String),
    ProviderKeyInvalidOrServiceMissing(String),
    ServiceTokenInvalid {
        token: String,
        service: String,
    },
    ServiceIdMissing,
    ServiceIdInvalid(String),
    UserKeyInvalid(Option<String>),
    ApplicationNotFound(Option<String>),
    AuthenticationError,
    MetricInvalid(String),
    /// `None`: there is no value.
    UsageValueInvalid {
        metric: String,
        value: Option<String>,
    },
    TransactionTimestampTooOld(u64),
    TransactionTimestampTooNew(u64),
    /// Counts have no room (`limits.limit_keys`).
    NoRoom,
    /// A body longer than `threescale_backend.body`.
    BodyTooLong(usize),
    /// Bodies that are being received take all memory there is for them.
    Busy,
    ApplicationKeyInvalid(Option<String>),
    ReferrerNotAllowed(Option<String>),
    ApplicationNotActive,
    ServiceNotActive,
    OauthNotEnabled,
    RedirectUriInvalid(String),
    RedirectUrlInvalid(String),
    LimitsExceeded,
}

impl Fault {
    /// True if a call has no credentials of a gateway, or a token that is none.
    pub(crate) fn is_of_credentials(&self) -> bool {
        matches!(
            self,
            Self::ProviderKeyOrServiceTokenRequired | Self::ServiceIdMissing | Self::ServiceTokenInvalid { .. }
        )
    }

    /// The status of an answer with this error.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::BadRequest(_)
            | Self::ContentTypeInvalid(_)
            | Self::TransactionsIsBlank
            | Self::TransactionsFormatInvalid
            | Self::TransactionsHasNilTransaction
            | Self::EndUsersNoLongerSupported => 400,
            Self::ApplicationNotFound(_) | Self::MetricInvalid(_) => 404,
            Self::BodyTooLong(_) => 413,
            Self::NotValidData | Self::ServiceIdMissing => 422,
            Self::NoRoom | Self::Busy => 503,
            _ => 403,
        }
    }

    /// The code, for programs.
    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::BadRequest(_) => "bad_request",
            Self::ContentTypeInvalid(_) => "content_type_invalid",
            Self::TransactionsIsBlank => "transactions_is_blank",
            Self::TransactionsFormatInvalid => "transactions_format_invalid",
            Self::TransactionsHasNilTransaction => "transactions_has_nil_transaction",
            Self::EndUsersNoLongerSupported => "end_users_no_longer_supported",
            Self::NotValidData => "not_valid_data",
            Self::ProviderKeyOrServiceTokenRequired => "provider_key_or_service_token_required",
            Self::ProviderKeyInvalid(_) => "provider_key_invalid",
            Self::ProviderKeyInvalidOrServiceMissing(_) => "provider_key_invalid_or_service_missing",
            Self::ServiceTokenInvalid { .. } => "service_token_invalid",
            Self::ServiceIdMissing => "service_id_missing",
            Self::ServiceIdInvalid(_) => "service_id_invalid",
            Self::UserKeyInvalid(_) => "user_key_invalid",
            Self::ApplicationNotFound(_) => "application_not_found",
            Self::AuthenticationError => "authentication_error",
            Self::MetricInvalid(_) => "metric_invalid",
            Self::UsageValueInvalid { .. } => "usage_value_invalid",
            Self::TransactionTimestampTooOld(_) => "transaction_timestamp_too_old",
            Self::TransactionTimestampTooNew(_) => "transaction_timestamp_too_new",
            Self::NoRoom => "no_room_for_counts",
            Self::BodyTooLong(_) => "body_too_long",
            Self::Busy => "busy",
            Self::ApplicationKeyInvalid(_) => "application_key_invalid",
            Self::ReferrerNotAllowed(_) => "referrer_not_allowed",
            Self::ApplicationNotActive => "application_not_active",
            Self::ServiceNotActive => "service_not_active",
            Self::OauthNotEnabled => "oauth_not_enabled",
            Self::RedirectUriInvalid(_) => "redirect_uri_invalid",
            Self::RedirectUrlInvalid(_) => "redirect_url_invalid",
            Self::LimitsExceeded => "limits_exceeded",
        }
    }
}

/// The text of an error, for people.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadRequest(text) => f.write_str(text),
            Self::ContentTypeInvalid(kind) => write!(f, "invalid Content-Type: {kind}"),
            Self::TransactionsIsBlank => f.write_str("transactions parameter is blank"),
            Self::TransactionsFormatInvalid => f.write_str("transactions format is invalid"),
            Self::TransactionsHasNilTransaction => f.write_str("transactions has a nil transaction"),
            Self::EndUsersNoLongerSupported => {
                f.write_str("End-users are no longer supported, do not specify the user_id parameter")
            }
            Self::NotValidData => f.write_str("all data must be valid UTF8"),
            Self::ProviderKeyOrServiceTokenRequired => f.write_str("Provider key or service token are required"),
            Self::ProviderKeyInvalid(key) => write!(f, "provider key \"{key}\" is invalid"),
            Self::ProviderKeyInvalidOrServiceMissing(key) => {
                write!(f, "provider key \"{key}\" invalid and/or service ID missing")
            }
            Self::ServiceTokenInvalid { token, service } => {
                write!(f, "service token \"{token}\" or service id \"{service}\" is invalid")
            }
            Self::ServiceIdMissing => f.write_str("Service ID is missing"),
            Self::ServiceIdInvalid(id) => write!(f, "service id \"{id}\" is invalid"),
            Self::UserKeyInvalid(None) => f.write_str("user key is missing"),
            Self::UserKeyInvalid(Some(key)) => write!(f, "user key \"{key}\" is invalid"),
            Self::ApplicationNotFound(None) => f.write_str("application id is missing"),
            Self::ApplicationNotFound(Some(id)) => write!(f, "application with id=\"{id}\" was not found"),
            Self::AuthenticationError => f.write_str("either app_id or user_key is allowed, not both"),
            Self::MetricInvalid(name) => write!(f, "metric \"{name}\" is invalid"),
            Self::UsageValueInvalid { metric, value: None } => {
                write!(f, "usage value for metric \"{metric}\" can not be empty")
            }
            Self::UsageValueInvalid { metric, value: Some(value) } => {
                write!(f, "usage value \"{value}\" for metric \"{metric}\" is invalid")
            }
            Self::TransactionTimestampTooOld(seconds) => {
                write!(f, "reporting transactions older than {seconds} seconds is not allowed")
            }
            Self::TransactionTimestampTooNew(seconds) => {
                write!(f, "reporting transactions more than {seconds} seconds in the future is not allowed")
            }
            Self::NoRoom => f.write_str("there is no room for another count (limits.limit_keys)"),
            Self::BodyTooLong(most) => write!(f, "the body is longer than {most} bytes (threescale_backend.body)"),
            Self::Busy => f.write_str("too many bodies are being received, try again"),
            Self::ApplicationKeyInvalid(None) => f.write_str("application key is missing"),
            Self::ApplicationKeyInvalid(Some(key)) => write!(f, "application key \"{key}\" is invalid"),
            Self::ReferrerNotAllowed(None) => f.write_str("referrer is missing"),
            Self::ReferrerNotAllowed(Some(referrer)) => write!(f, "referrer \"{referrer}\" is not allowed"),
            Self::ApplicationNotActive => f.write_str("application is not active"),
            Self::ServiceNotActive => f.write_str("service is not active"),
            Self::OauthNotEnabled => f.write_str("oauth is not enabled"),
            Self::RedirectUriInvalid(uri) => write!(f, "redirect_uri \"{uri}\" is invalid"),
            Self::RedirectUrlInvalid(url) => write!(f, "redirect_url \"{url}\" is invalid"),
            Self::LimitsExceeded => f.write_str("usage limits are exceeded"),
        }
    }
}
