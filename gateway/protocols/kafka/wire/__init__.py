"""What a Kafka record, error and setting is here: values in, values out."""
