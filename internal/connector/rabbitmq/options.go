package rabbitmq

// system is the name of RabbitMQ in the provenance of messages.
const system = "rabbitmq"
