//! Messages from clients, parsed from frames of bytes.
//!
//! ```text
//! startup   length:4  code:4  body            SSLRequest, GSSENCRequest, CancelRequest, StartupMessage
//! message   type:1    length:4  body          the length counts itself and the body
//! ```
//!
//! *Source*: PostgreSQL 15, sections 55.2 and 55.7.
//!
//! *Invariants*: a frame is complete before it is parsed, and it is parsed to its last byte; no input panics.
//!
//! *Not here*: replies (`replies`). The crate `pgwire`, which encodes them, has a parser too, but that one panics on a body
//! shorter than its fields.

use bytes::{Buf, Bytes, BytesMut};

use crate::wire_types::utf8;
use gannet_frontend::SqlError;

/// Largest startup message.
const STARTUP_BYTES_MAX: usize = 10_000;
/// Largest message with a statement, parameters or COPY data.
const LONG_MESSAGE_BYTES_MAX: usize = 256 << 20;
/// Largest of the other messages.
const SHORT_MESSAGE_BYTES_MAX: usize = 10_000;

const SSL_REQUEST: u32 = 80_877_103;
const GSS_ENCRYPTION_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;

/// The first message of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// A request for TLS.
    Tls,
    /// A request for GSSAPI encryption.
    GssEncryption,
    /// A request to cancel another connection's statement.
    Cancel { process_id: i32, secret_key: Bytes },
    /// A request for a session.
    Startup { major: u16, minor: u16, parameters: Vec<(String, String)> },
}

/// The kind of object in a Describe or Close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Statement,
    Portal,
}

/// A message after the startup.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ClientMessage {
    Query(String),
    Parse {
        name: String,
        query: String,
        type_oids: Vec<u32>,
    },
    Bind(Bind),
    Describe {
        kind: Kind,
        name: String,
    },
    Execute {
        portal: String,
        rows_max: i32,
    },
    Close {
        kind: Kind,
        name: String,
    },
    Flush,
    Sync,
    CopyData(Bytes),
    CopyDone,
    CopyFail(String),
    /// A password, or a step of SASL.
    Password(Bytes),
    Terminate,
}

/// Parameters of a statement, and the formats of parameters and results.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bind {
    pub(super) portal: String,
    pub(super) statement: String,
    pub(super) parameter_formats: Vec<i16>,
    pub(super) parameters: Vec<Option<Bytes>>,
    pub(super) result_formats: Vec<i16>,
}

/// Takes the first message of a connection from the buffer; None if the message is incomplete.
pub(super) fn take_opening(buffer: &mut BytesMut) -> Result<Option<Opening>, SqlError> {
    let Some(length) = buffer.get(..4) else {
        return Ok(None);
    };
    let length = usize::try_from(u32::from_be_bytes(length.try_into().expect("four bytes")))
        .unwrap_or(usize::MAX);
    if !(8..=STARTUP_BYTES_MAX).contains(&length) {
        return Err(violation("invalid length of startup packet"));
    }
    if buffer.len() < length {
        return Ok(None);
    }
    let mut body = Body(buffer.split_to(length).freeze());
    body.0.advance(4);
    let code = body.u32()?;
    match code {
        SSL_REQUEST => Ok(Some(Opening::Tls)),
        GSS_ENCRYPTION_REQUEST => Ok(Some(Opening::GssEncryption)),
        CANCEL_REQUEST => {
            let process_id = body.i32()?;
            Ok(Some(Opening::Cancel { process_id, secret_key: body.0 }))
        }
        version => {
            let minor = u16::try_from(version & 0xFFFF).expect("masked");
            let major = u16::try_from(version >> 16).expect("shifted");
            let parameters = if major == 3 { startup_parameters(&mut body)? } else { Vec::new() };
            Ok(Some(Opening::Startup { major, minor, parameters }))
        }
    }
}

fn startup_parameters(body: &mut Body) -> Result<Vec<(String, String)>, SqlError> {
    let mut parameters = Vec::new();
    loop {
        let name = body.string()?;
        if name.is_empty() {
            body.end()?;
            return Ok(parameters);
        }
        parameters.push((name, body.string()?));
    }
}

/// The type byte of the next message, if it has arrived.
pub(super) fn next_type(buffer: &BytesMut) -> Option<u8> {
    buffer.first().copied()
}

/// Takes the next message from the buffer; None if the message is incomplete.
///
/// # Errors
/// 08P01 for a malformed message: the beginning of the next one is then unknown, and the connection must end.
pub(super) fn take_message(buffer: &mut BytesMut) -> Result<Option<ClientMessage>, SqlError> {
    let Some(header) = buffer.get(..5) else {
        // An unknown type is an error at once, because the bytes behind it may never form a header.
        return match buffer.first() {
            Some(&kind) => length_max(kind).map(|_| None),
            None => Ok(None),
        };
    };
    let kind = header[0];
    let length = u32::from_be_bytes(header[1..].try_into().expect("four bytes"));
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    if !(4..=length_max(kind)?).contains(&length) {
        return Err(violation("invalid message length"));
    }
    if buffer.len() <= length {
        buffer.reserve(length + 1 - buffer.len());
        return Ok(None);
    }
    let mut body = Body(buffer.split_to(length + 1).freeze());
    body.0.advance(5);
    let message = parse(kind, &mut body)?;
    body.end()?;
    Ok(Some(message))
}

/// Takes the data of COPY out of the next messages that have come whole, and appends them to `data` while that has less than so many bytes.
pub(super) fn take_copy_data(buffer: &mut BytesMut, data: &mut Vec<u8>, bytes_max: usize) {
    while data.len() < bytes_max
        && let Some((b"d", rest)) = buffer.split_first_chunk()
        && let Some((length, rest)) = rest.split_first_chunk()
        && let Some(bytes) = (u32::from_be_bytes(*length) as usize).checked_sub(length.len())
        && let Some(body) = rest.get(..bytes)
    {
        data.extend_from_slice(body);
        buffer.advance(1 + length.len() + bytes);
    }
}

fn length_max(kind: u8) -> Result<usize, SqlError> {
    match kind {
        b'Q' | b'P' | b'B' | b'd' => Ok(LONG_MESSAGE_BYTES_MAX),
        b'D' | b'E' | b'C' | b'H' | b'S' | b'c' | b'f' | b'p' | b'X' => Ok(SHORT_MESSAGE_BYTES_MAX),
        b'F' => Err(SqlError::new("0A000", "the function call protocol is not supported")),
        other => Err(violation(format!("invalid frontend message type {other}"))),
    }
}

fn parse(kind: u8, body: &mut Body) -> Result<ClientMessage, SqlError> {
    Ok(match kind {
        b'Q' => ClientMessage::Query(body.string()?),
        b'P' => {
            let (name, query) = (body.string()?, body.string()?);
            let count = body.u16()?;
            let type_oids = (0..count).map(|_| body.u32()).collect::<Result<_, _>>()?;
            ClientMessage::Parse { name, query, type_oids }
        }
        b'B' => ClientMessage::Bind(parse_bind(body)?),
        b'D' => ClientMessage::Describe { kind: body.kind()?, name: body.string()? },
        b'E' => ClientMessage::Execute { portal: body.string()?, rows_max: body.i32()? },
        b'C' => ClientMessage::Close { kind: body.kind()?, name: body.string()? },
        b'H' => ClientMessage::Flush,
        b'S' => ClientMessage::Sync,
        b'd' => ClientMessage::CopyData(body.rest()),
        b'c' => ClientMessage::CopyDone,
        b'f' => ClientMessage::CopyFail(body.string()?),
        b'p' => ClientMessage::Password(body.rest()),
        b'X' => ClientMessage::Terminate,
        other => return Err(violation(format!("invalid frontend message type {other}"))),
    })
}

fn parse_bind(body: &mut Body) -> Result<Bind, SqlError> {
    let (portal, statement) = (body.string()?, body.string()?);
    let parameter_formats = body.format_codes()?;
    let count = body.u16()?;
    let parameters = (0..count).map(|_| body.counted()).collect::<Result<_, _>>()?;
    let result_formats = body.format_codes()?;
    Ok(Bind { portal, statement, parameter_formats, parameters, result_formats })
}

/// The mechanism and the first data of a SASLInitialResponse.
pub(super) fn sasl_initial_response(body: Bytes) -> Result<(String, Bytes), SqlError> {
    let mut body = Body(body);
    let mechanism = body.string()?;
    let data = body.counted()?.unwrap_or_default();
    body.end()?;
    Ok((mechanism, data))
}

/// The error for a violation of the protocol.
pub(super) fn violation(message: impl Into<String>) -> SqlError {
    SqlError::new("08P01", message)
}

/// The rest of a message's body.
struct Body(Bytes);

impl Body {
    fn take(&mut self, count: usize) -> Result<Bytes, SqlError> {
        if self.0.len() < count {
            return Err(violation("insufficient data left in message"));
        }
        Ok(self.0.split_to(count))
    }

    fn u16(&mut self) -> Result<u16, SqlError> {
        Ok(self.take(2)?.get_u16())
    }

    fn u32(&mut self) -> Result<u32, SqlError> {
        Ok(self.take(4)?.get_u32())
    }

    fn i32(&mut self) -> Result<i32, SqlError> {
        Ok(self.take(4)?.get_i32())
    }

    fn string(&mut self) -> Result<String, SqlError> {
        let end = self.0.iter().position(|&byte| byte == 0);
        let end = end.ok_or_else(|| violation("invalid string in message"))?;
        let text = utf8(&self.take(end)?)?.to_owned();
        self.0.advance(1);
        Ok(text)
    }

    fn kind(&mut self) -> Result<Kind, SqlError> {
        match self.take(1)?[0] {
            b'S' => Ok(Kind::Statement),
            b'P' => Ok(Kind::Portal),
            other => Err(violation(format!("there is no object of kind {other} to name"))),
        }
    }

    fn format_codes(&mut self) -> Result<Vec<i16>, SqlError> {
        let count = self.u16()?;
        (0..count).map(|_| Ok(self.take(2)?.get_i16())).collect()
    }

    /// A length, and so many bytes; None if the length is -1.
    fn counted(&mut self) -> Result<Option<Bytes>, SqlError> {
        match self.i32()? {
            -1 => Ok(None),
            length => {
                let length = usize::try_from(length).map_err(|_| violation("negative length"))?;
                self.take(length).map(Some)
            }
        }
    }

    fn rest(&mut self) -> Bytes {
        self.0.split_to(self.0.len())
    }

    fn end(&self) -> Result<(), SqlError> {
        if self.0.is_empty() { Ok(()) } else { Err(violation("invalid message format")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn frame(kind: u8, body: &[u8]) -> BytesMut {
        let mut frame = BytesMut::from(&[kind][..]);
        frame.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
        frame.extend_from_slice(body);
        frame
    }

    #[test]
    fn a_message_waits_for_its_last_byte() {
        let whole = frame(b'Q', b"SELECT 1\0");
        for length in 0..whole.len() {
            assert_eq!(take_message(&mut BytesMut::from(&whole[..length])), Ok(None));
        }
        let mut buffer = whole.clone();
        buffer.extend_from_slice(&whole[..7]);
        let query = ClientMessage::Query("SELECT 1".to_owned());
        assert_eq!(take_message(&mut buffer), Ok(Some(query)));
        assert_eq!(buffer.len(), 7);
    }

    #[test]
    fn data_of_copy_is_taken_out_of_whole_messages_up_to_another_one() {
        let messages = [frame(b'd', b"1\n2"), frame(b'd', b""), frame(b'd', b"\n3\n")].concat();
        let rest = frame(b'c', b"");
        let all = [&messages[..], &rest[..]].concat();
        for length in 0..=all.len() {
            let (mut buffer, mut data) = (BytesMut::from(&all[..length]), b"0\n".to_vec());
            take_copy_data(&mut buffer, &mut data, 100);
            let expected = match length {
                0..8 => &b"0\n"[..],
                8..21 => b"0\n1\n2",
                _ => b"0\n1\n2\n3\n",
            };
            assert_eq!(data, expected, "{length}");
        }
        let (mut buffer, mut data) = (BytesMut::from(&all[..]), Vec::new());
        take_copy_data(&mut buffer, &mut data, 3);
        assert_eq!((&data[..], buffer.len()), (&b"1\n2"[..], all.len() - 8));
        let mut malformed = BytesMut::from(&b"d\0\0\0\x03abc"[..]);
        take_copy_data(&mut malformed, &mut data, 100);
        assert_eq!(malformed.len(), 8, "the next look at the message tells");
    }

    #[test]
    fn a_body_has_exactly_its_fields() {
        for (kind, body) in [
            (b'Q', &b"no end"[..]),
            (b'Q', b"two\0\0"),
            (b'P', b"s\0SELECT 1\0\0\x02\0\0\0\x17"),
            (b'B', b"\0\0\0\0\0\x01\0\0\0\x09ab\0\0"),
            (b'B', b"\0\0\0\0\0\x01\xff\xff\xff\xf0\0\0"),
            (b'D', b"X\0"),
            (b'E', b"\0\0"),
            (b'S', b"x"),
        ] {
            let error = take_message(&mut frame(kind, body)).unwrap_err();
            assert_eq!(error.code, "08P01", "{kind} {body:?}");
        }
        assert_eq!(take_message(&mut frame(b'Q', b"\xff\0")).unwrap_err().code, "22021");
        let endless = &mut BytesMut::from(&b"Q\xff\xff\xff\xff"[..]);
        assert_eq!(take_message(endless).unwrap_err().code, "08P01");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = take_message(&mut buffer) {}
            let _ = take_opening(&mut BytesMut::from(&bytes[..]));
        }

        #[test]
        fn no_body_panics(kind in "[QPBDECHSdcfpX]", body in proptest::collection::vec(0_u8..4, 0..60)) {
            let _ = take_message(&mut frame(kind.as_bytes()[0], &body));
        }
    }
}
