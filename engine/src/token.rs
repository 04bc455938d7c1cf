//! Tokens: names under which a transaction is applied once, however often it is run.
//!
//! ```text
//! client: 1 to 64 bytes    sequence: 1, 2, 3, ...           in text   client:sequence
//! ```
//! A client numbers its transactions. It runs one again under the same number if it does not know the outcome, and takes the next
//! number when it does: of each client only the latest number is remembered.
//!
//! *Invariant*: a token has a client of 1 to 64 bytes and a sequence of at least 1, wherever it comes from.
//!
//! *Not here*: the table with the outcomes, in `tokens`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Bytes of a client's name.
const CLIENT_BYTES_MAX: usize = 64;
/// Bytes of the result that is kept under a token.
pub const TOKEN_RESULT_BYTES_MAX: usize = 1_024;

/// Names a transaction of a client, whichever node runs it, and however often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(Vec<u8>, u64)", into = "(Vec<u8>, u64)")]
pub struct Token {
    client: Vec<u8>,
    sequence: u64,
}

/// Why something is no token. Each message says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The client's name is empty or too long.
    #[error("a token's client has {0} bytes; give 1 to {CLIENT_BYTES_MAX}")]
    ClientBytes(usize),
    /// The sequence is 0.
    #[error("a token's sequence is 0; begin with 1")]
    Zero,
    /// It is not written as a token is.
    #[error("{0:?} is no token; write client:sequence, such as teller-7:42")]
    Malformed(String),
}

impl Token {
    /// The token of a client's transaction with this number.
    ///
    /// # Errors
    /// [`TokenError::ClientBytes`] unless `client` has 1 to 64 bytes, [`TokenError::Zero`] for the sequence 0.
    pub fn new(client: impl Into<Vec<u8>>, sequence: u64) -> Result<Self, TokenError> {
        let client = client.into();
        match (client.len(), sequence) {
            (1..=CLIENT_BYTES_MAX, 1..) => Ok(Self { client, sequence }),
            (1..=CLIENT_BYTES_MAX, 0) => Err(TokenError::Zero),
            (bytes, _) => Err(TokenError::ClientBytes(bytes)),
        }
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &[u8] {
        &self.client
    }

    /// The number of the client's transaction, from 1.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }
}

impl TryFrom<(Vec<u8>, u64)> for Token {
    type Error = TokenError;

    fn try_from((client, sequence): (Vec<u8>, u64)) -> Result<Self, TokenError> {
        Self::new(client, sequence)
    }
}

impl From<Token> for (Vec<u8>, u64) {
    fn from(Token { client, sequence }: Token) -> Self {
        (client, sequence)
    }
}

impl FromStr for Token {
    type Err = TokenError;

    /// Parses `client:sequence`; the client may have colons, too.
    fn from_str(text: &str) -> Result<Self, TokenError> {
        let malformed = || TokenError::Malformed(text.to_owned());
        let (client, sequence) = text.rsplit_once(':').ok_or_else(malformed)?;
        // A sign is no digit.
        if !sequence.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(malformed());
        }
        Self::new(client, sequence.parse().map_err(|_| malformed())?)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}:{}", String::from_utf8_lossy(&self.client), self.sequence)
    }
}

/// Why a transaction is not run, or does not commit, under its token. Each message says what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum TokenRefusal {
    /// A later transaction of the client is decided; what became of this one is not kept.
    #[error("a later transaction of the token's client is decided; give a higher sequence")]
    Superseded,
    /// The token is decided as aborted.
    #[error(
        "the outcome was asked for before the transaction committed, so it is aborted for good; run it with the next sequence"
    )]
    Aborted,
    /// The result is too long to be kept.
    #[error("the result under a token has more than {TOKEN_RESULT_BYTES_MAX} bytes; shorten it")]
    ResultTooLong,
}

/// What became of the transaction under a token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TokenOutcome {
    /// It is committed, with this result.
    Committed(Vec<u8>),
    /// It is not committed, and never will be under this token.
    Aborted,
    /// A later transaction of the client is decided; what became of this one is not kept.
    Superseded,
}

/// A transaction that is committed under a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Once {
    /// The result that the run which committed has given.
    pub result: Vec<u8>,
    /// Whether that was an earlier run: this one has changed nothing.
    pub is_repeated: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_written_with_a_colon() {
        let token: Token = "teller-7:42".parse().unwrap();
        assert_eq!((token.client(), token.sequence()), (&b"teller-7"[..], 42));
        assert_eq!(token.to_string(), "teller-7:42");
        let token: Token = "a:b:1".parse().unwrap();
        assert_eq!((token.client(), token.sequence()), (&b"a:b"[..], 1));
    }

    #[test]
    fn what_is_no_token_is_refused() {
        let long = format!("{}:1", "c".repeat(65));
        assert_eq!(long.parse::<Token>(), Err(TokenError::ClientBytes(65)));
        assert_eq!(":1".parse::<Token>(), Err(TokenError::ClientBytes(0)));
        assert_eq!("a:0".parse::<Token>(), Err(TokenError::Zero));
        for text in ["", "a", "a:", "a:b", "a:-1", "a:+1", "a: 1", "a:18446744073709551616"] {
            assert_eq!(
                text.parse::<Token>(),
                Err(TokenError::Malformed(text.to_owned())),
                "{text}"
            );
        }
    }

    #[test]
    fn a_token_from_elsewhere_is_checked() {
        let token = Token::new("teller", 7).unwrap();
        let bytes = postcard::to_stdvec(&token).unwrap();
        assert_eq!(postcard::from_bytes::<Token>(&bytes).unwrap(), token);
        let zero = postcard::to_stdvec(&(b"teller".to_vec(), 0_u64)).unwrap();
        assert!(postcard::from_bytes::<Token>(&zero).is_err());
        let nobody = postcard::to_stdvec(&(Vec::<u8>::new(), 1_u64)).unwrap();
        assert!(postcard::from_bytes::<Token>(&nobody).is_err());
    }
}
