variable "name" { type = string }
variable "timeout" { type = number }
variable "receives" {
  type     = number
  default  = 5
  nullable = false
}
