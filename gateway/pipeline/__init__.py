"""The data pipeline over the stored messages, on Spark. Imports no trio."""
