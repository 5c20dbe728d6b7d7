# finds: nothing
import json,os,boto3,traceback,uuid
sqs=boto3.client('sqs');ddb=boto3.resource('dynamodb')
T=ddb.Table(os.environ.get('T') or 'x')
def f(e,c=None,*a,**k):
    rs=(e or {}).get('Records') or [e]
    out=[]
    for i in range(len(rs)):
        r=rs[i]
        try:
            b=json.loads(r['body']) if type(r.get('body'))==str else r
            T.put_item(Item=dict(b,pk=b['id']))
        except:
            traceback.print_exc()
            out+=[{'itemIdentifier':r['messageId']}]
            if len(out)>3: break
    return dict(batchItemFailures=out)
handler=lambda e,c:f(e,c)
lambda_handler=f
