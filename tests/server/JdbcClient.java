// A client with JDBC: metadata, prepared statements in both formats, batches, keys, savepoints, cursors, errors.

import java.math.BigDecimal;
import java.sql.BatchUpdateException;
import java.sql.Connection;
import java.sql.Date;
import java.sql.DatabaseMetaData;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.sql.Timestamp;
import java.sql.Types;
import java.time.OffsetDateTime;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.UUID;
import org.postgresql.PGConnection;
import org.postgresql.copy.CopyManager;

public class JdbcClient {
    static void equal(Object expected, Object found) {
        if (!expected.equals(found)) {
            throw new AssertionError("expected " + expected + ", found " + found);
        }
    }

    interface Work {
        void run() throws SQLException;
    }

    static void fails(String sqlState, Work work) throws SQLException {
        try {
            work.run();
        } catch (SQLException error) {
            equal(sqlState, error.getSQLState());
            return;
        }
        throw new AssertionError("expected an error " + sqlState);
    }

    /** Columns of all rows of a result, as texts. */
    static List<String> rows(ResultSet result, String... columns) throws SQLException {
        List<String> rows = new ArrayList<>();
        while (result.next()) {
            List<String> cells = new ArrayList<>();
            for (String column : columns) {
                cells.add(result.getString(column));
            }
            rows.add(String.join("|", cells));
        }
        result.close();
        return rows;
    }

    public static void main(String[] arguments) throws Exception {
        Properties properties = new Properties();
        properties.setProperty("user", "tester");
        properties.setProperty("prepareThreshold", "3");
        try (Connection connection = DriverManager.getConnection(arguments[0], properties)) {
            define(connection);
            metadata(connection.getMetaData());
            prepared(connection);
            batches(connection);
            keys(connection);
            transactions(connection);
            cursors(connection);
            copies(connection);
        }
    }

    static void define(Connection connection) throws SQLException {
        try (Statement statement = connection.createStatement()) {
            statement.execute("CREATE TABLE account (id INT PRIMARY KEY, owner VARCHAR(40) NOT NULL, "
                + "balance NUMERIC(10,2) DEFAULT 0, opened DATE, seen TIMESTAMP, code UUID, active BOOLEAN, "
                + "rate DOUBLE PRECISION, photo BYTEA, since TIMESTAMPTZ DEFAULT now())");
            statement.execute("CREATE UNIQUE INDEX account_owner ON account (owner, id)");
            statement.execute("CREATE TABLE event (id SERIAL PRIMARY KEY, what TEXT)");
        }
    }

    static void metadata(DatabaseMetaData metadata) throws SQLException {
        equal("PostgreSQL", metadata.getDatabaseProductName());
        equal(List.of("account|TABLE", "event|TABLE"),
            rows(metadata.getTables(null, "public", "%", new String[] {"TABLE"}), "TABLE_NAME", "TABLE_TYPE"));
        List<String> columns = rows(metadata.getColumns(null, "public", "account", "%"),
            "COLUMN_NAME", "DATA_TYPE", "TYPE_NAME", "COLUMN_SIZE", "IS_NULLABLE", "ORDINAL_POSITION");
        equal(10, columns.size());
        equal("since|" + Types.TIMESTAMP + "|timestamptz|35|YES|10", columns.get(9));
        equal("id|" + Types.INTEGER + "|int4|10|NO|1", columns.get(0));
        equal("owner|" + Types.VARCHAR + "|varchar|40|NO|2", columns.get(1));
        equal("balance|" + Types.NUMERIC + "|numeric|10|YES|3", columns.get(2));
        equal("photo|" + Types.BINARY + "|bytea|2147483647|YES|9", columns.get(8));
        equal(List.of("YES"),
            rows(metadata.getColumns(null, null, "event", "id"), "IS_AUTOINCREMENT"));
        equal(List.of("account|id|1|account_pkey"),
            rows(metadata.getPrimaryKeys(null, "public", "account"), "TABLE_NAME", "COLUMN_NAME", "KEY_SEQ", "PK_NAME"));
        equal(List.of("account_owner|owner|1|f", "account_owner|id|2|f", "account_pkey|id|1|f"),
            rows(metadata.getIndexInfo(null, "public", "account", false, false),
                "INDEX_NAME", "COLUMN_NAME", "ORDINAL_POSITION", "NON_UNIQUE"));
        equal(true, rows(metadata.getSchemas(), "TABLE_SCHEM").contains("public"));
        equal(List.of(), rows(metadata.getImportedKeys(null, "public", "account"), "PK_NAME"));
        equal(true, rows(metadata.getTypeInfo(), "TYPE_NAME").contains("int4"));
        equal(true, rows(metadata.getTableTypes(), "TABLE_TYPE").contains("TABLE"));
        rows(metadata.getBestRowIdentifier(null, "public", "account", DatabaseMetaData.bestRowSession, false), "COLUMN_NAME");
        equal(List.of(), rows(metadata.getProcedures(null, null, "nothing"), "PROCEDURE_NAME"));
    }

    static void prepared(Connection connection) throws SQLException {
        UUID code = new UUID(1, 2);
        byte[] photo = {0, 1, (byte) 0xff};
        Date opened = Date.valueOf("2024-02-29");
        Timestamp seen = Timestamp.valueOf("2024-02-29 12:34:56.789");
        OffsetDateTime since = OffsetDateTime.parse("2024-02-29T12:34:56.789+02:00");
        String insert = "INSERT INTO account VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
        try (PreparedStatement statement = connection.prepareStatement(insert)) {
            for (int id = 0; id < 10; id++) {
                statement.setInt(1, id);
                statement.setString(2, "owner " + id);
                statement.setBigDecimal(3, new BigDecimal("12.50"));
                statement.setDate(4, opened);
                statement.setTimestamp(5, seen);
                statement.setObject(6, code);
                statement.setBoolean(7, true);
                statement.setDouble(8, 0.25);
                statement.setBytes(9, photo);
                statement.setObject(10, since);
                equal(1, statement.executeUpdate());
            }
        }
        // From the third execution on the server keeps the statement, and rows come in binary.
        try (PreparedStatement statement = connection.prepareStatement("SELECT * FROM account WHERE id = ?")) {
            for (int id = 0; id < 10; id++) {
                statement.setInt(1, id);
                ResultSet row = statement.executeQuery();
                equal(true, row.next());
                equal(id, row.getInt("id"));
                equal("owner " + id, row.getString("owner"));
                equal(new BigDecimal("12.50"), row.getBigDecimal("balance"));
                equal(opened, row.getDate("opened"));
                equal(seen, row.getTimestamp("seen"));
                equal(code, row.getObject("code"));
                equal(true, row.getBoolean("active"));
                equal(0.25, row.getDouble("rate"));
                equal(3, row.getBytes("photo").length);
                equal(since.toInstant(), row.getObject("since", OffsetDateTime.class).toInstant());
                equal(since.toInstant(), row.getTimestamp("since").toInstant());
                equal(false, row.next());
            }
            equal(Types.INTEGER, statement.getMetaData().getColumnType(1));
            equal(1, statement.getParameterMetaData().getParameterCount());
        }
        // A prepared statement sees the present table, even after a change.
        try (PreparedStatement statement = connection.prepareStatement("SELECT count(*) FROM event WHERE id > ?");
                Statement other = connection.createStatement()) {
            for (int time = 0; time < 6; time++) {
                statement.setInt(1, 0);
                ResultSet row = statement.executeQuery();
                row.next();
                equal(0L, row.getLong(1));
                if (time == 4) {
                    other.execute("ALTER TABLE event ADD COLUMN level INT DEFAULT 1");
                }
            }
        }
    }

    static void batches(Connection connection) throws SQLException {
        try (PreparedStatement statement = connection.prepareStatement("INSERT INTO account (id, owner) VALUES (?, ?)")) {
            for (int id = 100; id < 200; id++) {
                statement.setInt(1, id);
                statement.setString(2, "batch");
                statement.addBatch();
            }
            equal(100, statement.executeBatch().length);
            // A batch that fails leaves nothing behind.
            for (int id = 202; id >= 199; id--) {
                statement.setInt(1, id);
                statement.setString(2, "batch");
                statement.addBatch();
            }
            fails("23505", () -> {
                try {
                    statement.executeBatch();
                } catch (BatchUpdateException error) {
                    equal(4, error.getUpdateCounts().length);
                    throw error;
                }
            });
        }
        try (Statement statement = connection.createStatement()) {
            statement.addBatch("UPDATE account SET balance = 1 WHERE id = 100");
            statement.addBatch("DELETE FROM account WHERE id BETWEEN 101 AND 110");
            equal(10, statement.executeBatch()[1]);
            ResultSet row = statement.executeQuery("SELECT count(*), sum(balance) FROM account WHERE id >= 100");
            row.next();
            equal(90L, row.getLong(1));
            equal(new BigDecimal("1.00"), row.getBigDecimal(2));
        }
    }

    static void keys(Connection connection) throws SQLException {
        String insert = "INSERT INTO event (what) VALUES (?)";
        try (PreparedStatement statement = connection.prepareStatement(insert, Statement.RETURN_GENERATED_KEYS)) {
            for (int time = 1; time < 8; time++) {
                statement.setString(1, "event " + time);
                equal(1, statement.executeUpdate());
                ResultSet keys = statement.getGeneratedKeys();
                equal(true, keys.next());
                equal(time, keys.getInt("id"));
            }
        }
        try (PreparedStatement statement = connection.prepareStatement(insert, new String[] {"id"})) {
            statement.setString(1, "last");
            statement.executeUpdate();
            ResultSet keys = statement.getGeneratedKeys();
            equal(true, keys.next());
            equal(1, keys.getMetaData().getColumnCount());
        }
    }

    static void transactions(Connection connection) throws SQLException {
        equal(Connection.TRANSACTION_SERIALIZABLE, connection.getTransactionIsolation());
        connection.setAutoCommit(false);
        try (Statement statement = connection.createStatement()) {
            statement.executeUpdate("UPDATE account SET balance = 7 WHERE id = 1");
            Savepoint savepoint = connection.setSavepoint("before");
            fails("23505", () -> statement.executeUpdate("INSERT INTO account (id, owner) VALUES (2, 'x')"));
            fails("25P02", () -> statement.executeQuery("SELECT 1"));
            connection.rollback(savepoint);
            fails("23502", () -> statement.executeUpdate("INSERT INTO account (id) VALUES (1000)"));
            connection.rollback(savepoint);
            connection.releaseSavepoint(savepoint);
            connection.commit();
            statement.executeUpdate("DELETE FROM account");
            connection.rollback();
            ResultSet row = statement.executeQuery("SELECT balance FROM account WHERE id = 1");
            row.next();
            equal(new BigDecimal("7.00"), row.getBigDecimal(1));
            connection.commit();
        }
        connection.setAutoCommit(true);
        connection.setReadOnly(true);
        connection.setReadOnly(false);
        try (Statement statement = connection.createStatement()) {
            fails("42P01", () -> statement.executeQuery("SELECT * FROM nowhere"));
            fails("22012", () -> statement.executeQuery("SELECT 1 / 0"));
        }
    }

    static void cursors(Connection connection) throws SQLException {
        connection.setAutoCommit(false);
        try (PreparedStatement statement = connection.prepareStatement("SELECT id FROM account ORDER BY id")) {
            statement.setFetchSize(7);
            ResultSet rows = statement.executeQuery();
            int count = 0;
            while (rows.next()) {
                count++;
            }
            equal(100, count);
        }
        connection.commit();
        connection.setAutoCommit(true);
        try (Statement statement = connection.createStatement()) {
            statement.setQueryTimeout(60);
            statement.setMaxRows(5);
            equal(5, rows(statement.executeQuery("SELECT id FROM account"), "id").size());
        }
    }

    static void copies(Connection connection) throws Exception {
        CopyManager manager = connection.unwrap(PGConnection.class).getCopyAPI();
        equal(2L, manager.copyIn("COPY account (id, owner) FROM STDIN WITH (FORMAT csv)",
            new java.io.StringReader("5000,a\n5001,b\n")));
        java.io.StringWriter lines = new java.io.StringWriter();
        equal(2L, manager.copyOut("COPY (SELECT id, owner FROM account WHERE id >= 5000 ORDER BY id) TO STDOUT", lines));
        equal("5000\ta\n5001\tb\n", lines.toString());
    }
}
