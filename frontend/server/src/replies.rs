//! Messages to clients, written into one buffer, which is sent when the client waits.
//!
//! *Source*: PostgreSQL 15, sections 55.7 and 55.8.
//!
//! *Invariants*: the buffer contains whole messages. A message that cannot be encoded leaves no bytes.
//!
//! *Not here*: the encoding of most messages, which is `pgwire`'s. Rows and COPY data are many, so they are written in place.

use bytes::{BufMut, BytesMut};
use pgwire::messages::PgWireBackendMessage as Message;
use pgwire::messages::copy::{CopyDone, CopyInResponse, CopyOutResponse};
use pgwire::messages::data::{NoData, ParameterDescription, RowDescription};
use pgwire::messages::extendedquery::{
    BindComplete, CloseComplete, ParseComplete, PortalSuspended,
};
use pgwire::messages::response::{
    CommandComplete, EmptyQueryResponse, ErrorResponse, NoticeResponse, ReadyForQuery,
    TransactionStatus as WireStatus,
};
use pgwire::messages::startup::ParameterStatus;

use super::wire_types::{Format, field_description, put_value};
use gannet_frontend::{Column, DataType, SqlError, TransactionStatus, Value};

/// The schema of all tables.
const SCHEMA: &str = "public";
/// Longest text in a field of an error; a longer one is cut.
const FIELD_BYTES_MAX: usize = 6_000;

/// The effect of an error on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Severity {
    /// The statement failed.
    Error,
    /// The connection ends.
    Fatal,
}

/// Messages that wait to be sent.
#[derive(Default)]
pub(super) struct Replies {
    buffer: BytesMut,
}

impl Replies {
    /// The bytes to send.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Appends the messages of another buffer.
    pub(super) fn append(&mut self, others: &Self) {
        self.buffer.extend_from_slice(&others.buffer);
    }

    /// Removes the messages, after they were sent.
    pub(super) fn clear(&mut self) {
        self.buffer.clear();
    }

    /// A message of the crate pgwire.
    ///
    /// # Errors
    /// 54000 if the message is larger than the protocol allows; nothing is written then.
    pub(super) fn message(&mut self, message: &Message) -> Result<(), SqlError> {
        let start = self.buffer.len();
        message.encode(&mut self.buffer).map_err(|error| {
            self.buffer.truncate(start);
            SqlError::new("54000", format!("a message is too large: {error}"))
        })
    }

    fn small(&mut self, message: &Message) {
        self.message(message).expect("a message of fixed size, or of texts that were cut");
    }

    pub(super) fn error(&mut self, severity: Severity, error: &SqlError) {
        let severity = match severity {
            Severity::Error => "ERROR",
            Severity::Fatal => "FATAL",
        };
        let fields = fields(severity, error.code, error);
        self.small(&Message::ErrorResponse(ErrorResponse::new(fields)));
    }

    /// A notice. A leading `WARNING: ` becomes the severity.
    pub(super) fn notice(&mut self, text: &str) {
        let (severity, code, text) = match text.strip_prefix("WARNING: ") {
            Some(text) => ("WARNING", "01000", text),
            None => ("NOTICE", "00000", text.strip_prefix("NOTICE: ").unwrap_or(text)),
        };
        let fields = fields(severity, code, &SqlError::new("00000", text));
        self.small(&Message::NoticeResponse(NoticeResponse::new(fields)));
    }

    pub(super) fn parameter_status(&mut self, name: &str, value: &str) {
        let status = ParameterStatus::new(cut(name), cut(value));
        self.small(&Message::ParameterStatus(status));
    }

    pub(super) fn ready(&mut self, status: TransactionStatus) {
        let status = match status {
            TransactionStatus::Idle => WireStatus::Idle,
            TransactionStatus::InTransaction => WireStatus::Transaction,
            TransactionStatus::Failed => WireStatus::Error,
        };
        self.small(&Message::ReadyForQuery(ReadyForQuery::new(status)));
    }

    pub(super) fn command_complete(&mut self, tag: &str) {
        self.small(&Message::CommandComplete(CommandComplete::new(cut(tag))));
    }

    pub(super) fn empty_query(&mut self) {
        self.small(&Message::EmptyQueryResponse(EmptyQueryResponse::new()));
    }

    pub(super) fn parse_complete(&mut self) {
        self.small(&Message::ParseComplete(ParseComplete::new()));
    }

    pub(super) fn bind_complete(&mut self) {
        self.small(&Message::BindComplete(BindComplete::new()));
    }

    pub(super) fn close_complete(&mut self) {
        self.small(&Message::CloseComplete(CloseComplete::new()));
    }

    pub(super) fn portal_suspended(&mut self) {
        self.small(&Message::PortalSuspended(PortalSuspended::new()));
    }

    pub(super) fn no_data(&mut self) {
        self.small(&Message::NoData(NoData::new()));
    }

    pub(super) fn parameter_description(&mut self, types: &[DataType]) {
        let types = types.iter().map(|data_type| data_type.postgres().oid()).collect();
        self.small(&Message::ParameterDescription(ParameterDescription::new(types)));
    }

    /// The columns of the rows that follow; a column without a format is sent as text.
    pub(super) fn row_description(
        &mut self,
        columns: &[Column],
        formats: &[Format],
    ) -> Result<(), SqlError> {
        i16::try_from(columns.len()).map_err(|_| SqlError::new("54011", "too many columns"))?;
        let formats = formats.iter().copied().chain(std::iter::repeat(Format::Text));
        let fields = columns
            .iter()
            .zip(formats)
            .map(|(column, format)| field_description(column, format))
            .collect();
        self.message(&Message::RowDescription(RowDescription::new(fields)))
    }

    /// A row; `formats` as in [`Self::row_description`].
    pub(super) fn row(
        &mut self,
        columns: &[Column],
        formats: &[Format],
        row: &[Value],
    ) -> Result<(), SqlError> {
        let start = self.buffer.len();
        let result = self.put_row(columns, formats, row);
        if result.is_err() {
            self.buffer.truncate(start);
        }
        result
    }

    fn put_row(
        &mut self,
        columns: &[Column],
        formats: &[Format],
        row: &[Value],
    ) -> Result<(), SqlError> {
        let too_large = || SqlError::new("54000", "a row is too large for a message");
        self.buffer.put_u8(b'D');
        let length_at = self.buffer.len();
        self.buffer.put_i32(0);
        self.buffer.put_i16(i16::try_from(row.len()).map_err(|_| too_large())?);
        let formats = formats.iter().copied().chain(std::iter::repeat(Format::Text));
        for ((column, value), format) in columns.iter().zip(row).zip(formats) {
            put_value(&mut self.buffer, column.data_type, format, value)?;
        }
        let length =
            i32::try_from(self.buffer.len() - length_at).map_err(|_| too_large())?.to_be_bytes();
        self.buffer[length_at..length_at + 4].copy_from_slice(&length);
        Ok(())
    }

    /// Requests the data of a COPY with so many columns.
    pub(super) fn copy_in_response(&mut self, columns: usize) -> Result<(), SqlError> {
        let (columns, formats) = copy_columns(columns)?;
        self.message(&Message::CopyInResponse(CopyInResponse::new(0, columns, formats)))
    }

    /// Announces the data of a COPY with so many columns.
    pub(super) fn copy_out_response(&mut self, columns: usize) -> Result<(), SqlError> {
        let (columns, formats) = copy_columns(columns)?;
        self.message(&Message::CopyOutResponse(CopyOutResponse::new(0, columns, formats)))
    }

    /// A line of a COPY's data.
    pub(super) fn copy_data(&mut self, line: &[u8]) -> Result<(), SqlError> {
        let length = i32::try_from(line.len() + 4)
            .map_err(|_| SqlError::new("54000", "a line is too large for a message"))?;
        self.buffer.put_u8(b'd');
        self.buffer.put_i32(length);
        self.buffer.put_slice(line);
        Ok(())
    }

    pub(super) fn copy_done(&mut self) {
        self.small(&Message::CopyDone(CopyDone::new()));
    }
}

fn copy_columns(columns: usize) -> Result<(i16, Vec<i16>), SqlError> {
    let count = i16::try_from(columns).map_err(|_| SqlError::new("54011", "too many columns"))?;
    Ok((count, vec![0; columns]))
}

/// The fields of an error or a notice, by their letters in the protocol.
fn fields(severity: &str, code: &str, error: &SqlError) -> Vec<(u8, String)> {
    let mut fields = vec![
        (b'S', severity.to_owned()),
        (b'V', severity.to_owned()),
        (b'C', code.to_owned()),
        (b'M', cut(&error.message)),
    ];
    fields.extend(error.detail.as_deref().map(|detail| (b'D', cut(detail))));
    fields.extend(error.hint.as_deref().map(|hint| (b'H', cut(hint))));
    fields.extend(error.position.map(|position| (b'P', position.to_string())));
    if let Some(subject) = &error.subject {
        fields.extend([(b's', SCHEMA.to_owned()), (b't', cut(&subject.table))]);
        fields.extend(subject.column.as_deref().map(|column| (b'c', cut(column))));
        fields.extend(subject.constraint.as_deref().map(|name| (b'n', cut(name))));
    }
    fields
}

/// The text without characters that a string of the protocol cannot contain, and cut to the limit.
fn cut(text: &str) -> String {
    let text = text.replace('\0', "");
    let end = (0..=FIELD_BYTES_MAX.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    let end = end.expect("0 is a boundary");
    if end < text.len() { format!("{}...", &text[..end]) } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_error_fits_its_message() {
        let long = "é\0".repeat(100_000);
        let mut error = SqlError::new("22001", long.clone()).with_hint(long.clone());
        error.detail = Some(long.clone());
        let mut replies = Replies::default();
        replies.error(Severity::Error, &error);
        replies.notice(&long);
        replies.parameter_status(&long, &long);
        replies.command_complete(&long);
        assert!(replies.bytes().len() < 60_000);
    }

    #[test]
    fn a_row_that_cannot_be_sent_leaves_no_bytes() {
        let columns = [Column { name: "n".to_owned(), data_type: DataType::SmallInt }];
        let mut replies = Replies::default();
        let row = [Value::Integer(70_000)];
        assert_eq!(replies.row(&columns, &[Format::Binary], &row).unwrap_err().code, "22003");
        assert!(replies.bytes().is_empty());
        replies.row(&columns, &[], &row).unwrap();
        assert_eq!(replies.bytes(), b"D\0\0\0\x0f\0\x01\0\0\0\x0570000");
    }
}
